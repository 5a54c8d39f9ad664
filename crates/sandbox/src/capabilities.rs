//! Capabilities, which are given up for good except for those that are kept.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Makes all permitted capabilities ineffective, so that only the rights of the user count.
pub fn suspend() -> io::Result<()> {
    let sets = capabilities(None)?;
    Ok(set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets })?)
}

/// Gives up all capabilities except `wanted`, also in the bounding set. Returns those that are
/// left.
pub fn keep(wanted: CapabilitySet) -> io::Result<CapabilitySet> {
    let permitted = capabilities(None)?.permitted;
    let kept = wanted & permitted;
    if permitted.contains(CapabilitySet::SETPCAP) {
        let effective = CapabilitySet::SETPCAP;
        let inheritable = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?;
        // The kernel refuses capabilities that it does not know.
        for capability in (CapabilitySet::all() - kept).iter() {
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    // Kernels before 4.3 have no ambient capabilities.
    let _ = clear_ambient_capability_set();
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    Ok(kept)
}

/// Names for people, such as `CAP_NET_ADMIN`.
pub fn names(set: CapabilitySet) -> String {
    let names: Vec<String> = set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_their_usual_names() {
        assert_eq!(
            names(CapabilitySet::NET_ADMIN | CapabilitySet::CHOWN),
            "CAP_CHOWN CAP_NET_ADMIN"
        );
        assert_eq!(names(CapabilitySet::empty()), "none");
    }
}
