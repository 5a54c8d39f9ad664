//! The operator's settings of a vbd: keys in the backend's directory, from the toolstack and from
//! `block-ringmain`.

use std::path::{Component, PathBuf};

use hypervisor::{Nodes, StoreError};
use storage::image::Format;

/// The hotplug script of vbds that this driver serves.
pub const SCRIPT: &str = "block-ringmain";

/// Bits of `info` (`VDISK_`).
const CDROM: u32 = 1;
const REMOVABLE: u32 = 2;
const READONLY: u32 = 4;

/// The settings of a vbd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The path of the image (`physical-device-path`, which the hotplug script has written).
    pub image: PathBuf,
    /// The format of the image (`image-format`, which the hotplug script has written, too; raw
    /// unless it is there).
    pub format: Format,
    /// The guest may only read (`mode`).
    pub read_only: bool,
    /// Whether discards are offered (`discard-enable`).
    pub discard: bool,
    /// The vbd is a CD-ROM (`device-type`).
    pub cdrom: bool,
    /// The medium is removable (`removable`).
    pub removable: bool,
}

impl Settings {
    /// Reads them from the backend's directory `path`.
    ///
    /// # Errors
    /// When one is missing or makes no sense, or the store fails.
    pub fn read(nodes: &dyn Nodes, path: &str) -> Result<Settings, StoreError> {
        let key = |name: &str| format!("{path}/{name}");
        let image = nodes.text(&key("physical-device-path"))?;
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        let path = PathBuf::from(&image);
        if !path.is_absolute() || !path.components().all(plain) {
            return Err(StoreError::Value {
                path: key("physical-device-path"),
                value: image.chars().take(64).collect(),
                expected: "an absolute path without \"..\"",
            });
        }
        let format = match nodes.find(&key("image-format"))? {
            None => Format::Raw,
            Some(name) => {
                let known = Format::ALL.into_iter().find(|format| format.name() == name);
                known.ok_or_else(|| StoreError::Value {
                    path: key("image-format"),
                    value: name.chars().take(64).collect(),
                    expected: "\"raw\" or \"qcow2\"",
                })?
            }
        };
        let cdrom = nodes.find(&key("device-type"))?.as_deref() == Some("cdrom");
        let writable = nodes.find(&key("mode"))?.is_some_and(|mode| mode.starts_with('w'));
        let flag = |name: &str, otherwise: bool| {
            nodes.number::<u32>(&key(name)).map(|flag| flag.map_or(otherwise, |flag| flag != 0))
        };
        Ok(Settings {
            image: path,
            format,
            read_only: cdrom || !writable,
            discard: flag("discard-enable", true)?,
            cdrom,
            removable: flag("removable", false)?,
        })
    }

    /// The value of `info`.
    pub fn info(&self) -> u32 {
        let bits = [(self.cdrom, CDROM), (self.removable, REMOVABLE), (self.read_only, READONLY)];
        bits.into_iter().filter(|(on, _)| *on).map(|(_, bit)| bit).sum()
    }
}

#[cfg(test)]
mod tests {
    use hypervisor::DomId;
    use hypervisor::test::Machine;

    use super::*;

    fn read(keys: &[(&str, &str)]) -> Result<Settings, String> {
        let hypervisor = Machine::new().hypervisor(DomId(0));
        let nodes = hypervisor.store.nodes();
        nodes.put("/vbd/physical-device-path", "/images/a").unwrap();
        for (key, value) in keys {
            nodes.put(&format!("/vbd/{key}"), value).unwrap();
        }
        Settings::read(nodes, "/vbd").map_err(|error| error.to_string())
    }

    #[test]
    fn a_disk_is_writable_if_it_says_so() {
        for (mode, cdrom, info) in [("w", "disk", 0), ("r", "disk", 4), ("w", "cdrom", 5)] {
            let settings = read(&[("mode", mode), ("device-type", cdrom)]).unwrap();
            assert_eq!((settings.info(), settings.read_only), (info, info > 0));
            assert!(settings.discard);
        }
        let settings = read(&[("removable", "1"), ("discard-enable", "0")]).unwrap();
        assert_eq!((settings.info(), settings.discard), (6, false));
    }

    #[test]
    fn an_image_is_raw_unless_the_script_says_otherwise() {
        assert_eq!(read(&[]).unwrap().format, Format::Raw);
        assert_eq!(read(&[("image-format", "qcow2")]).unwrap().format, Format::Qcow2);
        let error = read(&[("image-format", "vhd")]).unwrap_err();
        assert!(error.contains("is not \"raw\" or \"qcow2\""), "{error}");
    }

    #[test]
    fn an_image_is_named_by_its_whole_path() {
        for path in ["images/a", "/images/../a", ""] {
            let error = read(&[("physical-device-path", path)]).unwrap_err();
            assert!(error.contains("is not an absolute path without \"..\""), "{error}");
        }
    }
}
