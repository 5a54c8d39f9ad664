//! Bytes on the wire: header views, flow hash, checksums, segmentation.
