//! The store: a small tree of text that all domains of a host share (docs/misc/xenstore.txt).
//!
//! Paths are absolute (`/local/domain/1/name`), or relative to our own domain's directory (`name`).
//! A watch event may come when nothing has changed, and once for several changes: it only says
//! which path to read again.

use std::fmt::{self, Debug};
use std::io;
use std::str::FromStr;

use ring::grant::DomId;
use thiserror::Error;

mod change;

pub use change::Changes;

/// Why the store did not do something.
#[derive(Debug, Error)]
pub enum StoreError {
    /// There is no such node.
    #[error("{path}: no such node")]
    NotFound {
        /// The node.
        path: String,
    },
    /// The node's permissions do not allow it.
    #[error("{path}: not allowed")]
    Denied {
        /// The node.
        path: String,
    },
    /// Another change conflicts with the transaction, which has to be repeated.
    #[error("a transaction was overtaken")]
    Again,
    /// A path, a value or a list is longer than the store takes.
    #[error("{path}: too long")]
    TooLong {
        /// The node.
        path: String,
    },
    /// The domain's quota in the store is used up: nodes, watches or transactions.
    #[error("{path}: quota used up")]
    Quota {
        /// The node.
        path: String,
    },
    /// The store refused the request as invalid.
    #[error("{path}: refused as {name}")]
    Refused {
        /// The node.
        path: String,
        /// The store's word for it, such as `EINVAL`.
        name: String,
    },
    /// The value has the wrong form.
    #[error("{path}: {value:?} is not {expected}")]
    Value {
        /// The node.
        path: String,
        /// The first bytes of the value.
        value: String,
        /// The value that was expected.
        expected: &'static str,
    },
    /// The answer does not belong to the request.
    #[error("the store does not speak its protocol: {0}")]
    Protocol(&'static str),
    /// The store was restarted, and has lost its contents.
    #[error("the store was started anew, and has lost the device; traffic continues")]
    Emptied,
    /// The connection is lost.
    #[error("the store can't be reached: {0}")]
    Lost(#[source] io::Error),
}

impl StoreError {
    /// Whether there was no such node.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// The access of a domain to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// No access (`n`).
    None,
    /// Read it (`r`).
    Read,
    /// Write it (`w`).
    Write,
    /// Both (`b`).
    Both,
}

impl Access {
    /// Whether it allows reading.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Both)
    }

    /// Whether it allows writing.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }

    fn letter(self) -> char {
        match self {
            Self::None => 'n',
            Self::Read => 'r',
            Self::Write => 'w',
            Self::Both => 'b',
        }
    }
}

/// One entry of a node's permissions. The first entry names the owner, who has full access; its
/// `access` applies to all domains that no other entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permission {
    /// The domain.
    pub domain: DomId,
    /// The domain's access.
    pub access: Access,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.access.letter(), self.domain)
    }
}

impl FromStr for Permission {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut chars = text.chars();
        let access = match chars.next() {
            Some('n') => Access::None,
            Some('r') => Access::Read,
            Some('w') => Access::Write,
            Some('b') => Access::Both,
            _ => return Err(()),
        };
        let domain = DomId(chars.as_str().parse().map_err(|_| ())?);
        Ok(Self { domain, access })
    }
}

/// The nodes of the store: as they are, or as a transaction has them.
pub trait Nodes: Debug + Send + Sync {
    /// The value of a node.
    ///
    /// # Errors
    /// See [`StoreError`], here and below.
    fn read(&self, path: &str) -> Result<Vec<u8>, StoreError>;

    /// Sets the value of a node, which is made if need be, with all above it.
    fn write(&self, path: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Makes a node without a value, and all above it. One that exists stays as it is.
    fn make(&self, path: &str) -> Result<(), StoreError>;

    /// Removes a node and all below it. A missing node in an existing directory is no error.
    fn remove(&self, path: &str) -> Result<(), StoreError>;

    /// The names of the nodes right below one.
    fn directory(&self, path: &str) -> Result<Vec<String>, StoreError>;

    /// The permissions of a node.
    fn permissions(&self, path: &str) -> Result<Vec<Permission>, StoreError>;

    /// Sets the permissions of a node.
    fn set_permissions(&self, path: &str, permissions: &[Permission]) -> Result<(), StoreError>;
}

/// Longest piece of a foreign value that is repeated in an error.
const QUOTED: usize = 64;

impl dyn Nodes + '_ {
    /// The value of a node that may not be there.
    pub fn find(&self, path: &str) -> Result<Option<String>, StoreError> {
        match self.text(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The value of a node, which must be UTF-8.
    pub fn text(&self, path: &str) -> Result<String, StoreError> {
        String::from_utf8(self.read(path)?).map_err(|error| {
            let value = error.as_bytes();
            bad_value(path, &String::from_utf8_lossy(value.get(..QUOTED).unwrap_or(value)), "text")
        })
    }

    /// The value of a node, which must parse as `T`, such as a number; `None` when there is no such
    /// node.
    pub fn number<T: FromStr>(&self, path: &str) -> Result<Option<T>, StoreError> {
        let Some(text) = self.find(path)? else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| bad_value(path, &text, "a number in range"))
    }

    /// Sets the value of a node to the displayed form of `value`.
    pub fn put(&self, path: &str, value: impl fmt::Display) -> Result<(), StoreError> {
        self.write(path, value.to_string().as_bytes())
    }
}

fn bad_value(path: &str, value: &str, expected: &'static str) -> StoreError {
    StoreError::Value { path: path.into(), value: value.chars().take(QUOTED).collect(), expected }
}

/// Called with the path of a node that changed, on a thread of the store. The function must neither
/// block nor use the store. A domain can make changes at any rate, so the function must not
/// collect them without a bound: see [`Changes`].
pub type OnChange = Box<dyn Fn(&str) + Send + Sync>;

/// The store as it is.
pub trait Store: Debug + Send + Sync {
    /// The nodes as they are.
    fn nodes(&self) -> &dyn Nodes;

    /// Starts a transaction: its changes become visible all at once, or not at all. Dropping the
    /// transaction aborts it.
    fn begin(&self) -> Result<Box<dyn Transaction + '_>, StoreError>;

    /// How often the connection to the store was lost and made anew.
    fn losses(&self) -> u64 {
        0
    }

    /// Calls `on_change` whenever the node or one below it changes, and once now, until the watch
    /// is dropped. The node need not exist.
    fn watch(&self, path: &str, on_change: OnChange) -> Result<Watch, StoreError>;
}

/// A transaction under way.
pub trait Transaction: Debug {
    /// The nodes as it has them.
    fn nodes(&self) -> &dyn Nodes;

    /// Commits the transaction.
    ///
    /// # Errors
    /// [`StoreError::Again`] when another change conflicts: then nothing was changed.
    fn commit(self: Box<Self>) -> Result<(), StoreError>;
}

/// A watch: ends when it is dropped. Its `OnChange` may be running then, and is not called again
/// after that.
#[derive(Debug)]
#[must_use]
pub struct Watch(#[expect(dead_code, reason = "kept to be dropped")] Box<dyn Ends>);

/// Ends a watch when it is dropped.
pub trait Ends: Debug + Send + Sync {}

impl Watch {
    /// A watch that ends with `ends`.
    pub fn new(ends: Box<dyn Ends>) -> Self {
        Self(ends)
    }
}

/// How often a transaction is tried. Each failure means that another transaction was committed; one
/// that fails this often is being prevented on purpose.
const TRIES: usize = 100;

/// Runs `body` in a transaction and commits it. If another change conflicts, all is repeated.
///
/// # Errors
/// The error of `body`; [`StoreError::Again`] after a hundred conflicts.
pub fn transaction<T>(
    store: &dyn Store,
    mut body: impl FnMut(&dyn Nodes) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    for _ in 0..TRIES {
        let transaction = store.begin()?;
        let outcome = match body(transaction.nodes()) {
            Err(StoreError::Again) => continue,
            outcome => outcome?,
        };
        match transaction.commit() {
            Err(StoreError::Again) => {}
            committed => return committed.map(|()| outcome),
        }
    }
    Err(StoreError::Again)
}

#[cfg(test)]
pub(crate) mod tests;
