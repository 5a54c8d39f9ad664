//! Extensions of netif.h by this backend and this frontend. The backend offers those that the
//! operator has configured, and the frontend requests some of them. Other frontends ignore these
//! keys, and are served as usual.

use hypervisor::{Nodes, StoreError};

/// A set of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// `range-grants`: the frontend grants the bytes of each frame that it sends, and nothing
    /// else.
    pub ranges: bool,
    /// `guest-copy`: the frontend has its hypervisor copy received frames, out of grants that are
    /// passed on to it.
    pub guest_copy: bool,
}

impl Extensions {
    fn each(self) -> [(&'static str, bool); 2] {
        [("range-grants", self.ranges), ("guest-copy", self.guest_copy)]
    }

    /// Their names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        self.each().into_iter().filter(|(_, on)| *on).map(|(name, _)| name)
    }

    /// The extensions in both sets.
    #[must_use]
    pub fn and(self, other: Extensions) -> Extensions {
        Extensions {
            ranges: self.ranges && other.ranges,
            guest_copy: self.guest_copy && other.guest_copy,
        }
    }

    /// Writes the offer into the backend's directory `path`.
    ///
    /// # Errors
    /// The store's error.
    pub fn offer(self, nodes: &dyn Nodes, path: &str) -> Result<(), StoreError> {
        self.write(nodes, &format!("{path}/feature"))
    }

    /// Reads the offered extensions.
    ///
    /// # Errors
    /// The store's error.
    pub fn offered(nodes: &dyn Nodes, path: &str) -> Result<Extensions, StoreError> {
        Self::read(nodes, &format!("{path}/feature"))
    }

    /// Writes the request into the frontend's directory `path`.
    ///
    /// # Errors
    /// The store's error.
    pub fn ask(self, nodes: &dyn Nodes, path: &str) -> Result<(), StoreError> {
        self.write(nodes, &format!("{path}/request"))
    }

    /// Reads the requested extensions.
    ///
    /// # Errors
    /// The store's error.
    pub fn asked(nodes: &dyn Nodes, path: &str) -> Result<Extensions, StoreError> {
        Self::read(nodes, &format!("{path}/request"))
    }

    /// Writes a key for each extension that is on.
    fn write(self, nodes: &dyn Nodes, prefix: &str) -> Result<(), StoreError> {
        for (name, on) in self.each() {
            let key = format!("{prefix}-{name}");
            match on {
                true => nodes.put(&key, 1)?,
                false => match nodes.remove(&key) {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                },
            }
        }
        Ok(())
    }

    fn read(nodes: &dyn Nodes, prefix: &str) -> Result<Extensions, StoreError> {
        let flag = |name| {
            let number = nodes.number::<u32>(&format!("{prefix}-{name}"))?;
            Ok::<_, StoreError>(number.is_some_and(|number| number != 0))
        };
        Ok(Extensions { ranges: flag("range-grants")?, guest_copy: flag("guest-copy")? })
    }
}

#[cfg(test)]
mod tests {
    use hypervisor::DomId;
    use hypervisor::test::Machine;

    use super::*;

    #[test]
    fn what_is_off_can_not_be_seen() {
        let hypervisor = Machine::new().hypervisor(DomId(0));
        let nodes = hypervisor.store.nodes();
        let all = Extensions { ranges: true, guest_copy: true };
        for some in
            [all, Extensions { ranges: false, ..all }, Extensions { guest_copy: false, ..all }]
        {
            some.offer(nodes, "/back").unwrap();
            assert_eq!(Extensions::offered(nodes, "/back").unwrap(), some);
            some.ask(nodes, "/front").unwrap();
            assert_eq!(Extensions::asked(nodes, "/front").unwrap(), some);
            assert_eq!(nodes.directory("/back").unwrap().len(), some.names().count());
        }
        Extensions::default().offer(nodes, "/back").unwrap();
        assert!(nodes.directory("/back").unwrap().is_empty());
        nodes.put("/back/feature-guest-copy", "x").unwrap();
        assert!(Extensions::offered(nodes, "/back").is_err());
    }
}
