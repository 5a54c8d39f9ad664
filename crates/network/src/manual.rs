//! Workers without threads, driven by their owner: see [`runtime::manual`].

use crate::pipeline::FramePipeline;

/// A worker of the frame pipeline that is driven by its owner.
pub type ManualWorker = runtime::ManualWorker<FramePipeline>;
