//! Compressed clusters: raw deflate streams, which are read and never written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// Reads the compressed cluster of `most` bytes at `place` into `cluster`, which is as long as a
/// cluster. The bytes are whole sectors, so the stream may end before them.
///
/// # Errors
/// When the file cannot be read, or the stream is damaged or yields less than a cluster.
pub(super) fn read(file: &File, (place, most): (u64, u64), cluster: &mut [u8]) -> io::Result<()> {
    let mut stream = vec![0; most as usize];
    let mut len = 0;
    // The file may end within the last sector.
    while let Some(rest) = stream.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, place + len as u64)? {
            0 => break,
            read => len += read,
        }
    }
    stream.truncate(len);
    let mut inflater = DecompressorOxide::new();
    let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (status, _, written) = decompress(&mut inflater, &stream, cluster, 0, flags);
    match status {
        TINFLStatus::Done | TINFLStatus::HasMoreOutput if written == cluster.len() => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EUCLEAN)),
    }
}
