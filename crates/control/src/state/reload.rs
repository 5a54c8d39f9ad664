//! A reload: reads the configuration file, and applies the changes.

use tracing::info;

use super::DaemonState;
use crate::api::ReloadReport;
use crate::config::{Config, ConfigErrors, Others, Places};
use crate::config_file::{ConfigFile, FileError};
use crate::confinement;
use crate::reload::{Change, FileNames, Running, changes, fixed_keys, fixed_xen_disks};

impl DaemonState {
    /// Reads the configuration file again, and applies the changes. A dry run only reports them.
    ///
    /// # Errors
    /// The problems, in lines for people. Nothing has changed then.
    pub fn reload(&self, dry_run: bool) -> Result<ReloadReport, String> {
        // Reloads run one after the other, so that the text that was read last is in force.
        let _alone = self.reloading.lock();
        let file = self.file.as_ref().ok_or("this daemon was started without a file")?;
        let text = file.read().map_err(|error| unreadable(&error))?;
        let mut ports = self.lock();
        let mut disks = self.disks.lock();
        let xen_disks = disks.xen_spec().cloned();
        let mut overlays = self.overlays.lock();
        let running = Running {
            overlays: overlays.specs(),
            disks: disks.running(),
            xen_disks,
            ..ports.running()
        };
        let (wanted, changes) = self.compare(file, &text, &running)?;
        if dry_run {
            let changes = changes.iter().map(Change::report).collect();
            return Ok(ReloadReport { applied: false, changes });
        }
        let mut reports = ports.reload(&changes, &wanted.security);
        ports.set_of_file(FileNames::of(&wanted));
        overlays.reload(&changes, &mut reports);
        let gone = disks.remove_gone(&changes);
        drop((overlays, disks, ports));
        // The disks are dropped without locks, because requests may be under way.
        drop(gone);
        self.disks.lock().reload(&changes, &mut reports);
        info!(changes = reports.len(), "the configuration is reloaded");
        Ok(ReloadReport { applied: true, changes: reports })
    }

    /// The configuration in a text, and its differences from the running objects.
    fn compare(
        &self,
        file: &ConfigFile,
        text: &str,
        running: &Running,
    ) -> Result<(Config, Vec<Change>), String> {
        let wrong = |errors: ConfigErrors| errors.to_string();
        let alone = file.parse(text, &Others::default()).map_err(wrong)?;
        // The ports and disks that stay are known only now.
        let others = Others {
            ports: running.kept(&alone).collect(),
            disks: running.kept_disks(&alone).collect(),
        };
        let wanted = file.parse(text, &others).map_err(wrong)?;
        let places = Places::read(&file.name(), text);
        let fixed = fixed_keys(&self.config, &wanted).into_iter().map(|key| {
            let place = places.of(key);
            format!("{place}: this cannot change while the daemon runs; restart it, or undo this")
        });
        let disks = running.fixed_disks(&wanted).into_iter().map(|(name, keys)| {
            let (place, keys) =
                (places.of(&Places::disk(&name)), keys.join(", ").replace('_', "-"));
            format!(
                "{place}: {keys}: this cannot change while the disk is in service; remove the disk \
                 (ringmain disk remove {name}), and reload again, or undo this"
            )
        });
        let xen_disks = fixed_xen_disks(&self.config, &wanted).map(|name| {
            let place = places.of(&Places::disk(&name));
            format!(
                "{place}: a reload can change limits of disks of Xen guests only; restart the \
                 daemon, or undo this"
            )
        });
        let conflicts = running.conflicts(&wanted).into_iter();
        let conflicts = conflicts.map(|conflict| format!("{}: {conflict}", file.name()));
        let changes = changes(running, &wanted);
        let new = changes.iter().filter_map(Change::new_port);
        let forbidden = new
            .filter_map(|port| confinement::refusal(&self.config, &self.layers, port))
            .map(|refusal| format!("{}: {refusal}", file.name()));
        let no_overlays = changes.iter().filter_map(Change::new_overlay);
        let no_overlays = no_overlays.filter_map(|overlay| {
            confinement::refuses_overlay(&self.config, &self.layers, overlay)
        });
        let no_overlays = no_overlays.map(|refusal| format!("{}: {refusal}", file.name()));
        let adds_disk = changes.iter().any(Change::adds_disk);
        let no_disks = self.starter.refusal().filter(|_| adds_disk);
        let no_disks = no_disks.map(|refusal| format!("{}: {refusal}", file.name()));
        let refused = fixed
            .chain(disks)
            .chain(xen_disks)
            .chain(conflicts)
            .chain(forbidden)
            .chain(no_disks)
            .chain(no_overlays);
        let refused: Vec<String> = refused.collect();
        if !refused.is_empty() {
            return Err(refused.join("\n"));
        }
        Ok((wanted, changes))
    }
}

/// Why there is no text. The daemon may have changed its user since the start.
fn unreadable(error: &FileError) -> String {
    match error {
        FileError::Unreadable { .. } => {
            let user = rustix::process::geteuid().as_raw();
            format!("{error}; the daemon, which runs as user {user}, must be able to read it")
        }
        FileError::NotText { .. } => error.to_string(),
    }
}
