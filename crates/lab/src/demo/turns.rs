//! Datapaths that take turns, each with guests of its own.
//!
//! All guests boot at the start. Those whose turn it is not are stopped by a signal, with their
//! datapath, so that rates follow each other within seconds: the pace of a virtual machine changes
//! by a factor of 1.6 within a minute, which is less than two boots and a measurement take.

use super::point::{self, Point};
use super::qemu::Qemu;
use super::{Args, DemoError, Over};
use crate::guest::{Accel, Image, Job};
use crate::progress::Progress;

/// Datapaths with their guests, of which one runs at a time.
pub(crate) struct Turns {
    scenes: Vec<Scene>,
}

/// A datapath and its guests. The receiver serves streams.
struct Scene {
    // The order of drops matters: a command in a guest ends before the guest.
    _server: Job,
    site: Qemu,
}

impl Turns {
    /// Starts these datapaths and their guests, and stops all of them.
    ///
    /// # Errors
    /// When the guests or what carries their frames fail, or the user interrupts.
    pub(crate) fn start(
        args: &Args,
        over: &[Over],
        (image, accel): (&Image, Accel),
        progress: &Progress,
    ) -> Result<Turns, DemoError> {
        let start = |over: &Over| {
            let site = Qemu::start(args, *over, image, accel, progress)?;
            let scene = Scene { _server: point::serve(&site, progress)?, site };
            scene.site.let_run(false);
            Ok(scene)
        };
        Ok(Turns { scenes: over.iter().map(start).collect::<Result<_, DemoError>>()? })
    }

    /// Measures one of the datapaths, by its place among those that were started.
    ///
    /// # Errors
    /// As [`point::measure`].
    pub(crate) fn measure(
        &self,
        args: &Args,
        which: usize,
        queues: u16,
        progress: &Progress,
    ) -> Result<Point, DemoError> {
        let site = &self.scenes[which].site;
        site.let_run(true);
        let point = point::measure(args, site, queues, progress);
        site.let_run(false);
        point
    }
}
