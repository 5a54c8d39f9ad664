//! The requests that are served.

use super::error::BadMessage;
use super::header::Header;
use super::layout::{NAMES, name};
use super::payload::{ConfigRange, HasFd, Inflight, LogArea, Payload, Region, RingAddress};

/// A request of the front-end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Report the virtio features that are offered.
    GetFeatures,
    /// Use these virtio features.
    SetFeatures(u64),
    /// A front-end took possession of the session.
    SetOwner,
    /// Deprecated: disable all vrings.
    ResetOwner,
    /// The complete memory table; one descriptor for each region.
    SetMemTable(Vec<Region>),
    /// Where written pages are marked; the descriptor comes with the message.
    SetLogBase(LogArea),
    /// An event descriptor, which comes with the message, for pages that were marked.
    SetLogFd,
    /// Number of entries of a vring.
    SetVringNum(u8, u16),
    /// Addresses of a vring.
    SetVringAddr(u8, RingAddress),
    /// Position at which a vring continues.
    SetVringBase(u8, u32),
    /// Stop a vring and report its position.
    GetVringBase(u8),
    /// Descriptor through which the driver kicks; without one the vring is to be polled.
    SetVringKick(u8, HasFd),
    /// Descriptor through which the driver is interrupted; without one the driver polls.
    SetVringCall(u8, HasFd),
    /// Descriptor by which errors are signalled to the front-end.
    SetVringErr(u8, HasFd),
    /// Report the protocol features that are offered.
    GetProtocolFeatures,
    /// Use these protocol features.
    SetProtocolFeatures(u64),
    /// Report the number of queues.
    GetQueueNum,
    /// Whether a vring passes data.
    SetVringEnable(u8, bool),
    /// Announce this address of the guest, which has migrated, in the network.
    SendRarp([u8; 6]),
    /// The guest will be told this MTU, in bytes.
    NetSetMtu(u64),
    /// Read the configuration space.
    GetConfig(ConfigRange),
    /// Write these bytes to the configuration space.
    SetConfig(ConfigRange, Vec<u8>),
    /// The socket for requests of the back-end, which comes with the message.
    SetBackendReqFd,
    /// Make memory for in-flight records; the number is the size of the payload.
    GetInflightFd(Inflight, usize),
    /// Use in-flight records that were made before; their descriptor comes with the message.
    SetInflightFd(Inflight),
    /// Stop and disable all vrings.
    ResetDevice,
    /// Report how many regions the memory may have.
    GetMaxMemSlots,
    /// Add a region; its descriptor comes with the message.
    AddMemReg(Region),
    /// Remove a region.
    RemMemReg(Region),
}

impl Request {
    /// Parses a message with this header, this payload and `fds` descriptors.
    ///
    /// # Errors
    /// The first thing that is wrong with the message.
    pub fn parse(header: &Header, payload: &[u8], fds: usize) -> Result<Request, BadMessage> {
        let body = Payload { name: header.name(), bytes: payload };
        let request = match header.code {
            1 => body.empty().map(|()| Request::GetFeatures)?,
            2 => Request::SetFeatures(body.number()?),
            3 => body.empty().map(|()| Request::SetOwner)?,
            4 => body.empty().map(|()| Request::ResetOwner)?,
            5 => Request::SetMemTable(body.table()?),
            6 => Request::SetLogBase(body.log_area()?),
            7 => body.empty().map(|()| Request::SetLogFd)?,
            8 => body.ring_size().map(|(ring, size)| Request::SetVringNum(ring, size))?,
            9 => body.address().map(|(ring, address)| Request::SetVringAddr(ring, address))?,
            10 => body.state().map(|(ring, base)| Request::SetVringBase(ring, base))?,
            11 => body.state().map(|(ring, _)| Request::GetVringBase(ring))?,
            12 => body.event().map(|(ring, has)| Request::SetVringKick(ring, has))?,
            13 => body.event().map(|(ring, has)| Request::SetVringCall(ring, has))?,
            14 => body.event().map(|(ring, has)| Request::SetVringErr(ring, has))?,
            15 => body.empty().map(|()| Request::GetProtocolFeatures)?,
            16 => Request::SetProtocolFeatures(body.number()?),
            17 => body.empty().map(|()| Request::GetQueueNum)?,
            18 => body.enable().map(|(ring, enable)| Request::SetVringEnable(ring, enable))?,
            19 => Request::SendRarp(body.mac()?),
            20 => Request::NetSetMtu(body.number()?),
            21 => body.empty().map(|()| Request::SetBackendReqFd)?,
            24 => body.config().map(|(range, _)| Request::GetConfig(range))?,
            25 => body.config().map(|(range, bytes)| Request::SetConfig(range, bytes.to_vec()))?,
            31 => Request::GetInflightFd(body.inflight()?, payload.len()),
            32 => Request::SetInflightFd(body.inflight()?),
            34 => body.empty().map(|()| Request::ResetDevice)?,
            36 => body.empty().map(|()| Request::GetMaxMemSlots)?,
            37 => Request::AddMemReg(body.region()?),
            38 => Request::RemMemReg(body.region()?),
            code if code != 0 && usize::try_from(code).is_ok_and(|code| code < NAMES.len()) => {
                return Err(BadMessage::NotOffered(name(code)));
            }
            code => return Err(BadMessage::Unknown(code)),
        };
        request.check_fds(header.name(), fds)?;
        Ok(request)
    }

    /// How many descriptors come beside the request.
    pub fn fds(&self) -> usize {
        match self {
            Request::SetMemTable(regions) => regions.len(),
            Request::AddMemReg(_)
            | Request::SetInflightFd(_)
            | Request::SetBackendReqFd
            | Request::SetLogBase(_)
            | Request::SetLogFd => 1,
            Request::SetVringKick(_, has)
            | Request::SetVringCall(_, has)
            | Request::SetVringErr(_, has) => usize::from(*has),
            _ => 0,
        }
    }

    fn check_fds(&self, name: &'static str, fds: usize) -> Result<(), BadMessage> {
        let expected = self.fds();
        // Older front-ends send the descriptor of the region that is removed; the specification
        // tells back-ends to accept that.
        let surplus = usize::from(matches!(self, Request::RemMemReg(_)));
        if fds < expected || fds > expected + surplus {
            return Err(BadMessage::Descriptors { name, fds, expected });
        }
        Ok(())
    }
}
