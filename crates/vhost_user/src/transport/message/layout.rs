//! Sizes, flags and request numbers of the protocol.

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 12;

/// Most bytes of payload that are read: one page, far more than any request has.
pub const MAX_PAYLOAD: usize = 4096;

/// Most file descriptors beside one message: one for each region of a memory table.
pub const MAX_FDS: usize = 8;

/// Most regions of `SET_MEM_TABLE` (`VHOST_USER_MAX_RAM_SLOTS` of the base protocol).
pub const MAX_TABLE_REGIONS: usize = 8;

/// Most bytes of the configuration space (`VHOST_USER_MAX_CONFIG_SIZE`).
pub const MAX_CONFIG: usize = 256;

/// Bits 0 and 1 of the flags: the version of the protocol, always 1.
pub(super) const VERSION: u32 = 1;
pub(super) const VERSION_MASK: u32 = 3;
/// Bit 2 of the flags: the message is a reply.
pub(super) const REPLY: u32 = 1 << 2;
/// Bit 3 of the flags: the sender requests an acknowledgement.
pub(super) const NEED_REPLY: u32 = 1 << 3;

/// Names of all requests of the protocol, by number.
pub(super) const NAMES: [&str; 45] = [
    "NONE",
    "GET_FEATURES",
    "SET_FEATURES",
    "SET_OWNER",
    "RESET_OWNER",
    "SET_MEM_TABLE",
    "SET_LOG_BASE",
    "SET_LOG_FD",
    "SET_VRING_NUM",
    "SET_VRING_ADDR",
    "SET_VRING_BASE",
    "GET_VRING_BASE",
    "SET_VRING_KICK",
    "SET_VRING_CALL",
    "SET_VRING_ERR",
    "GET_PROTOCOL_FEATURES",
    "SET_PROTOCOL_FEATURES",
    "GET_QUEUE_NUM",
    "SET_VRING_ENABLE",
    "SEND_RARP",
    "NET_SET_MTU",
    "SET_BACKEND_REQ_FD",
    "IOTLB_MSG",
    "SET_VRING_ENDIAN",
    "GET_CONFIG",
    "SET_CONFIG",
    "CREATE_CRYPTO_SESSION",
    "CLOSE_CRYPTO_SESSION",
    "POSTCOPY_ADVISE",
    "POSTCOPY_LISTEN",
    "POSTCOPY_END",
    "GET_INFLIGHT_FD",
    "SET_INFLIGHT_FD",
    "GPU_SET_SOCKET",
    "RESET_DEVICE",
    "VRING_KICK",
    "GET_MAX_MEM_SLOTS",
    "ADD_MEM_REG",
    "REM_MEM_REG",
    "SET_STATUS",
    "GET_STATUS",
    "GET_SHARED_OBJECT",
    "SET_DEVICE_STATE_FD",
    "CHECK_DEVICE_STATE",
    "GET_SHMEM_CONFIG",
];

/// The name of request number `code`.
pub fn name(code: u32) -> &'static str {
    usize::try_from(code)
        .ok()
        .and_then(|code| NAMES.get(code).copied())
        .unwrap_or("unknown request")
}
