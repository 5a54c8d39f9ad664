//! The front-end of a connection.

use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ring::driver::DriverRing;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VringConfigData};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;

use crate::error::DriverError;
use crate::guest::{Guest, USER_BASE};
use crate::log::WriteLog;
use crate::vring::{Driver, Vring};

/// How long a back-end may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Requests that crate `vhost` does not have, or not with all of their values.
const NET_SET_MTU: u32 = 20;
const SET_VRING_BASE: u32 = 10;
const SET_FEATURES: u32 = 2;
const SET_LOG_BASE: u32 = 6;
const SEND_RARP: u32 = 19;

/// `VHOST_F_LOG_ALL`.
const LOG_ALL: u64 = 1 << 26;

fn sent<T>(request: &'static str, result: vhost::Result<T>) -> Result<T, DriverError> {
    result.map_err(|error| DriverError::Message { request, error })
}

/// The features and sizes that a driver negotiates.
#[derive(Clone, Copy, Debug)]
pub struct FrontEndConfig {
    /// Feature bits that the driver supports: those that the back-end offers too are negotiated.
    pub features: u64,
    /// Feature bits among them that the driver requires.
    pub required: u64,
    /// Queue pairs.
    pub queue_pairs: u16,
    /// MTU in bytes to tell the back-end, if it offers that (a protocol feature).
    pub mtu: Option<u16>,
    /// Protocol features that the front-end supports.
    pub protocol: VhostUserProtocolFeatures,
}

impl FrontEndConfig {
    /// Protocol features of a front-end like QEMU, as far as generated traffic depends on them.
    pub fn usual_protocol() -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::MTU
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    /// As [`usual_protocol`](Self::usual_protocol), for guests that migrate.
    pub fn migrating_protocol() -> VhostUserProtocolFeatures {
        Self::usual_protocol()
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::RARP
    }
}

/// The front-end of one connection.
pub struct FrontEnd {
    messages: Frontend,
    stream: UnixStream,
    features: u64,
    acknowledges: bool,
    protocol: VhostUserProtocolFeatures,
    /// Whether rings are started with logging.
    logs_rings: bool,
}

impl FrontEnd {
    /// Agrees with the back-end on features and queues, and becomes its owner.
    ///
    /// # Errors
    /// When the back-end lacks required features, or breaks the protocol.
    pub fn negotiate(stream: UnixStream, config: &FrontEndConfig) -> Result<Self, DriverError> {
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(|e| DriverError::Io("socket", e))?;
        let rings = 2 * u64::from(config.queue_pairs);
        let clone = |s: &UnixStream| s.try_clone().map_err(|e| DriverError::Io("socket", e));
        let mut front = Self {
            messages: Frontend::from_stream(clone(&stream)?, rings),
            stream,
            features: 0,
            acknowledges: false,
            protocol: VhostUserProtocolFeatures::empty(),
            logs_rings: false,
        };
        let offered = sent("GET_FEATURES", front.messages.get_features())?;
        let missing = config.required & !offered;
        if missing != 0 {
            return Err(DriverError::Missing(missing));
        }
        front.features = offered & (config.features | PROTOCOL_FEATURES);
        if offered & PROTOCOL_FEATURES != 0 {
            front.negotiate_protocol(config)?;
        } else if config.queue_pairs > 1 {
            return Err(DriverError::Queues { wanted: config.queue_pairs, served: 1 });
        }
        sent("SET_OWNER", front.messages.set_owner())?;
        sent("SET_FEATURES", front.messages.set_features(front.features))?;
        if let Some(mtu) =
            config.mtu.filter(|_| front.protocol.contains(VhostUserProtocolFeatures::MTU))
        {
            front.raw("NET_SET_MTU", NET_SET_MTU, &u64::from(mtu).to_le_bytes())?;
        }
        Ok(front)
    }

    fn negotiate_protocol(&mut self, config: &FrontEndConfig) -> Result<(), DriverError> {
        let offered = sent("GET_PROTOCOL_FEATURES", self.messages.get_protocol_features())?;
        self.protocol = offered & config.protocol;
        sent("SET_PROTOCOL_FEATURES", self.messages.set_protocol_features(self.protocol))?;
        if self.protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            self.acknowledges = true;
            self.messages.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        let served = match self.protocol.contains(VhostUserProtocolFeatures::MQ) {
            true => self.queue_pairs_served()?,
            false => 1,
        };
        match u64::from(config.queue_pairs) <= served {
            true => Ok(()),
            false => Err(DriverError::Queues { wanted: config.queue_pairs, served }),
        }
    }

    /// Asks for the number of queue pairs on the bare socket. Crate `vhost` would take the answer
    /// for a number of rings, and refuse half of them.
    fn queue_pairs_served(&mut self) -> Result<u64, DriverError> {
        const GET_QUEUE_NUM: u32 = 17;
        self.send_raw(GET_QUEUE_NUM, 1, &[], &[])?;
        self.receive_u64("GET_QUEUE_NUM")
    }

    /// The bare socket, for tests that send messages which no front-end sends.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Crate `vhost`'s front-end on the same socket.
    pub fn messages(&mut self) -> &mut Frontend {
        &mut self.messages
    }

    /// The negotiated features.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The protocol features that were negotiated.
    pub fn protocol(&self) -> VhostUserProtocolFeatures {
        self.protocol
    }

    /// Length of `virtio_net_hdr` before each frame (virtio 1.2, 5.1.6.1).
    pub fn header_len(&self) -> usize {
        match self.features & (1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_NET_F_MRG_RXBUF) {
            0 => 10,
            _ => 12,
        }
    }

    /// Shows the guest's memory to the back-end; again when it has changed.
    ///
    /// # Errors
    /// When the back-end refuses it.
    pub fn share(&mut self, guest: &Guest) -> Result<(), DriverError> {
        sent("SET_MEM_TABLE", self.messages.set_mem_table(&guest.table())).map(drop)
    }

    /// Makes queue pair number `pair` with rings of these sizes, and starts it.
    ///
    /// # Errors
    /// As [`Vring::new`] and [`start`](Self::start).
    pub fn driver<R: DriverRing>(
        &mut self,
        guest: &mut Guest,
        pair: u16,
        (rx_size, tx_size): (u16, u16),
        entries: u16,
    ) -> Result<Driver<R>, DriverError> {
        let rx = Vring::new(guest, 2 * pair, rx_size, self.features, entries)?;
        let tx = Vring::new(guest, 2 * pair + 1, tx_size, self.features, entries)?;
        self.start(&rx, rx.config().start)?;
        self.start(&tx, tx.config().start)?;
        Ok(Driver { tx, rx })
    }

    /// Hands a ring to the back-end, which continues from `base`, and enables it.
    ///
    /// # Errors
    /// When the back-end refuses it.
    pub fn start<R: DriverRing>(&mut self, vring: &Vring<R>, base: u32) -> Result<(), DriverError> {
        let (index, config) = (usize::from(vring.index()), vring.config());
        sent("SET_VRING_NUM", self.messages.set_vring_num(index, config.size))?;
        let state: Vec<u8> = [u32::from(vring.index()).to_le_bytes(), base.to_le_bytes()].concat();
        self.raw("SET_VRING_BASE", SET_VRING_BASE, &state)?;
        self.place(vring)?;
        sent("SET_VRING_CALL", self.messages.set_vring_call(index, vring.call()))?;
        sent("SET_VRING_KICK", self.messages.set_vring_kick(index, vring.kick_event()))?;
        self.enable(vring.index(), true)
    }

    /// Tells the back-end the addresses of a ring and of its log.
    fn place<R: DriverRing>(&mut self, vring: &Vring<R>) -> Result<(), DriverError> {
        let config = vring.config();
        let place = VringConfigData {
            queue_max_size: config.size,
            queue_size: config.size,
            flags: u32::from(self.logs_rings),
            desc_table_addr: USER_BASE + config.desc,
            used_ring_addr: USER_BASE + config.device,
            avail_ring_addr: USER_BASE + config.driver,
            log_addr: Some(config.device),
        };
        let index = usize::from(vring.index());
        sent("SET_VRING_ADDR", self.messages.set_vring_addr(index, &place))
    }

    /// Makes the back-end mark the pages that it writes in `log`, which [`WriteLog::take`] reads.
    /// Needs `LOG_SHMFD`.
    ///
    /// # Errors
    /// When the back-end refuses.
    pub fn share_log(&mut self, log: &WriteLog) -> Result<(), DriverError> {
        let area = [log.len(), 0].map(u64::to_le_bytes).concat();
        self.send_raw(SET_LOG_BASE, 1, &area, &[log.file()])?;
        let mut reply = [0; 12];
        let read = (&self.stream).read_exact(&mut reply);
        read.map_err(|e| DriverError::Io("SET_LOG_BASE", e))?;
        match reply == *[SET_LOG_BASE, 5, 0].map(u32::to_le_bytes).as_flattened() {
            true => Ok(()),
            false => Err(DriverError::Refused("SET_LOG_BASE")),
        }
    }

    /// Turns the log on or off, as QEMU does at the begin and at the end of a migration: first
    /// that of buffers, then that of the rings of `driver`.
    ///
    /// # Errors
    /// When the back-end refuses.
    pub fn log<R: DriverRing>(&mut self, on: bool, driver: &Driver<R>) -> Result<(), DriverError> {
        let features = self.features | if on { LOG_ALL } else { 0 };
        self.raw("SET_FEATURES", SET_FEATURES, &features.to_le_bytes())?;
        self.logs_rings = on;
        self.place(&driver.rx)?;
        self.place(&driver.tx)
    }

    /// Makes the back-end announce the guest with address `mac`.
    ///
    /// # Errors
    /// When the back-end refuses.
    pub fn send_rarp(&mut self, mac: [u8; 6]) -> Result<(), DriverError> {
        let [a, b, c, d, e, f] = mac;
        self.raw("SEND_RARP", SEND_RARP, &[a, b, c, d, e, f, 0, 0])
    }

    /// Enables or disables a ring; without protocol features rings are enabled as they start.
    ///
    /// # Errors
    /// When the back-end refuses.
    pub fn enable(&mut self, index: u16, on: bool) -> Result<(), DriverError> {
        if self.features & PROTOCOL_FEATURES == 0 {
            return Ok(());
        }
        sent("SET_VRING_ENABLE", self.messages.set_vring_enable(usize::from(index), on))
    }

    /// Stops a ring. Returns the back-end's position.
    ///
    /// # Errors
    /// When the back-end does not answer.
    pub fn stop(&mut self, index: u16) -> Result<u32, DriverError> {
        sent("GET_VRING_BASE", self.messages.get_vring_base(usize::from(index)))
    }

    /// A request that crate `vhost` does not know, with its acknowledgement if there is one.
    fn raw(&mut self, name: &'static str, request: u32, body: &[u8]) -> Result<(), DriverError> {
        let need_reply = if self.acknowledges { 8 } else { 0 };
        self.send_raw(request, 1 | need_reply, body, &[])?;
        match self.acknowledges && self.receive_u64(name)? != 0 {
            true => Err(DriverError::Refused(name)),
            false => Ok(()),
        }
    }

    /// Sends any message: header fields, body and file descriptors are as given.
    ///
    /// # Errors
    /// When the socket is closed.
    pub fn send_raw(
        &self,
        request: u32,
        flags: u32,
        body: &[u8],
        files: &[&OwnedFd],
    ) -> Result<(), DriverError> {
        let mut bytes = Vec::with_capacity(12 + body.len());
        for word in [request, flags, body.len() as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(body);
        let files: Vec<_> = files.iter().map(|f| f.as_fd()).collect();
        let mut space =
            vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(files.len()))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let sent =
            sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        match sent {
            Ok(n) if n == bytes.len() => Ok(()),
            Ok(_) => Err(DriverError::Io("socket", io::ErrorKind::WriteZero.into())),
            Err(e) => Err(DriverError::Io("socket", e.into())),
        }
    }

    /// Receives a reply whose body is one 64-bit number.
    ///
    /// # Errors
    /// When the back-end closes the socket, does not answer, or answers something else.
    pub fn receive_u64(&self, name: &'static str) -> Result<u64, DriverError> {
        let mut bytes = [0; 20];
        (&self.stream).read_exact(&mut bytes).map_err(|e| DriverError::Io(name, e))?;
        let (header, body) = bytes.split_at(12);
        if header[4] & 4 == 0 || header[8..] != [8, 0, 0, 0] {
            return Err(DriverError::Refused(name));
        }
        Ok(body.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}
