//! The bare copy on Xen: pages of one domain copied by grants, and nothing else. No ring is read,
//! no header is looked at, nobody is signalled. A backend that copies frames cannot cost less.

use std::io;
use std::time::Instant;

use hypervisor::{DomId, Granted, Grants, PAGE};
use ring::copies::Copies;

use super::BYTES_PER_MB;
use crate::bench::BenchError;

/// Pages of a frame of 64 KiB. The kernel passes as many copies to Xen in one hypercall.
const PAGES: usize = 16;

/// Options of the process.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How many frames of 64 KiB are copied
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub frames: u32,
}

/// Copies in the domain that this process runs in, and prints the nanoseconds that 10^6 bytes took.
///
/// # Errors
/// When this is no domain of a Xen host, the process is not root, or Xen refuses a copy.
pub fn run(args: &Args) -> Result<(), BenchError> {
    let failed = |what| move |source| BenchError::Start { what, source };
    let xen = hypervisor::xen::open().map_err(io::Error::other).map_err(failed("use Xen"))?;
    let nanos =
        measure(&*xen.grants, xen.domain, args.frames).map_err(failed("copy granted pages"))?;
    println!("{nanos:.0}");
    Ok(())
}

/// Nanoseconds for 10^6 bytes of the domain `domain`, which is this process's own.
fn measure(grants: &dyn Grants, domain: DomId, frames: u32) -> io::Result<f64> {
    let pages = || grants.own_pages(PAGES * PAGE).ok_or(io::ErrorKind::OutOfMemory);
    let (from, to) = (pages()?, pages()?);
    let mut copies = Copies::new(PAGES, 1).map_err(io::Error::other)?;
    let begin = Instant::now();
    for _ in 0..frames {
        copies.clear();
        for (&source, &target) in from.references.iter().zip(&to.references) {
            let [source, target] =
                [source, target].map(|reference| Granted { domain, reference, offset: 0 });
            copies.push_granted(source, target, PAGE as u16, 0).map_err(io::Error::other)?;
        }
        grants.copy(&mut copies).map_err(io::Error::other)?;
        if let Some((_, status, _)) = copies.failed().next() {
            return Err(io::Error::other(format!("Xen answers {status:?}")));
        }
    }
    let bytes = f64::from(frames) * (PAGES * PAGE) as f64;
    Ok(begin.elapsed().as_secs_f64() * 1e9 / (bytes / BYTES_PER_MB))
}
