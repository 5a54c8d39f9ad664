//! The ports that are mirrored, and their mirrors.

use switch::Mirrors;

use super::Ports;

impl Ports {
    /// Makes the fabric mirror ports by their present settings. Must be called after each change of
    /// ports, and periodically, because vifs come and go by themselves.
    pub(super) fn follow_mirrors(&self) {
        self.fabric.set_mirrors(self.mirrors());
    }

    /// The names of the ports that can be the mirror of `name`.
    pub(super) fn possible_mirrors(&self, name: &str) -> Vec<String> {
        let can = self.specs().filter(|spec| spec.kind.kind().can_mirror() && spec.name != name);
        can.map(|spec| spec.name.clone()).collect()
    }

    fn mirrors(&self) -> Mirrors {
        let mut mirrors = Mirrors::default();
        for (name, port) in &self.ports {
            let mirror = port.spec.settings.mirror.as_ref();
            // There are no copies while a mirror is out of service or removed.
            let Some(mirror) = mirror.and_then(|mirror| self.id(mirror)) else { continue };
            // A mirror without ports to mirror at present is still a mirror.
            mirrors.ports.insert(mirror);
            let vifs = port.backend.iter().flat_map(|backend| backend.vifs(name));
            let vifs = vifs.filter_map(|vif| vif.status.port);
            mirrors.of.extend(self.id(name).into_iter().chain(vifs).map(|id| (id, mirror)));
        }
        mirrors
    }
}
