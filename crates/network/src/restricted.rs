//! The restrictions of a port, as a queue of the port holds them.

use std::ops::Deref;
use std::sync::Arc;

use crate::port_filter::QueueFilter;
use crate::restrictions::Restrictions;

/// The restrictions of a queue's port, and the queue's own part of the port's filter.
#[derive(Debug)]
pub struct Restricted {
    restrictions: Arc<Restrictions>,
    /// `None`: the port has no filter, or the filter is in use just now.
    pub filter: Option<Box<QueueFilter>>,
}

impl Restricted {
    /// These restrictions for one queue, with an empty cache of the filter's answers.
    pub fn new(restrictions: Arc<Restrictions>) -> Self {
        let filter = restrictions.filter.as_ref();
        let filter = filter.map(|port| Box::new(QueueFilter::new(Arc::clone(port))));
        Restricted { restrictions, filter }
    }
}

impl Deref for Restricted {
    type Target = Restrictions;

    fn deref(&self) -> &Restrictions {
        &self.restrictions
    }
}
