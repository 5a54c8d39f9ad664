//! Checked access to fields at computed offsets: the one place where an offset meets a slice.

/// The `N` bytes at `at`, if they are all there.
#[inline(always)]
pub(crate) fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk()
}

/// The big-endian 16-bit field at `at`, if it is there.
#[inline(always)]
pub(crate) fn get_u16(bytes: &[u8], at: usize) -> Option<u16> {
    chunk(bytes, at).copied().map(u16::from_be_bytes)
}

/// The big-endian 32-bit field at `at`, if it is there.
#[inline(always)]
pub(crate) fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    chunk(bytes, at).copied().map(u32::from_be_bytes)
}

/// Writes `value` over the bytes at `at`. If they are not all there, writes nothing and returns
/// `None`.
#[inline(always)]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value;
    Some(())
}
