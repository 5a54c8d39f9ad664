//! The violations of netif.h by a frontend, beyond those of rings and grants.

use thiserror::Error;

/// A violation by a frontend. Its vif is stopped under this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Fault {
    /// Part of a packet is published without the rest.
    #[error("a packet's last slots are missing")]
    Torn,
    /// An extra info slot of a type that is not known.
    #[error("extra info of an unknown type")]
    ExtraType,
    /// More extra info slots than there are types.
    #[error("extra info that does not end")]
    EndlessExtras,
    /// A packet in more slots than any frontend needs.
    #[error("a packet in too many slots")]
    TooManySlots,
    /// Offset and size of a slot reach beyond the page.
    #[error("a slot reaches beyond its page")]
    CrossesPage,
    /// A segmentation extra with an unknown type or without a size.
    #[error("segmentation extra info makes no sense")]
    BadGso,
    /// The frontend's keys in the store are not those of this connection any more.
    #[error("keys changed after connecting")]
    KeysChanged,
    /// A request of a device queue that names none of its pages, or one that the device has
    /// already.
    #[error(
        "a request for the device queue names none of its pages, or one that is posted already"
    )]
    NotDevicePage,
    /// Control messages beyond the allowed rate.
    #[error("a flood of control messages")]
    ControlFlood,
}

impl Fault {
    /// The reason in words.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Torn => "a packet's last slots are missing",
            Fault::ExtraType => "extra info of an unknown type",
            Fault::EndlessExtras => "extra info that does not end",
            Fault::TooManySlots => "a packet in too many slots",
            Fault::CrossesPage => "a slot reaches beyond its page",
            Fault::BadGso => "segmentation extra info makes no sense",
            Fault::KeysChanged => "keys changed after connecting",
            Fault::NotDevicePage => {
                "a request for the device queue names none of its pages, or one that is posted already"
            }
            Fault::ControlFlood => "a flood of control messages",
        }
    }
}
