//! Which ports are mirrored, and where.

use switch::Mirrors;

use super::Ports;

impl Ports {
    /// Has the fabric mirror ports as their settings are now. To be called after any change of
    /// ports, and now and then: vifs come and go by themselves.
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
            // A mirror may be out of service, or removed: then there are no copies.
            let Some(mirror) = mirror.and_then(|mirror| self.id(mirror)) else { continue };
            // One that has nobody to mirror at present is a mirror all the same.
            mirrors.ports.insert(mirror);
            let vifs = port.backend.iter().flat_map(|backend| backend.vifs(name));
            let vifs = vifs.filter_map(|vif| vif.status.port);
            mirrors.of.extend(self.id(name).into_iter().chain(vifs).map(|id| (id, mirror)));
        }
        mirrors
    }
}
