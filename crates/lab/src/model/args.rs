//! The command line of the model.

use std::path::PathBuf;

use super::ASSUMPTIONS;
use super::advise::Question;
use super::check;
use super::costs::{Era, Transport};
use super::curves;
use super::error::ModelError;
use super::inputs::Inputs;
use super::measure::Meter;
use super::results::Results;
use super::rounds;
use crate::bench::BenchError;
use crate::folders::folder;
use crate::interrupt;
use crate::progress::Progress;

/// Options of the model.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Measure the cost of single operations on this machine, check the model against measurements
    /// where possible, and draw curves. The measurement takes 4 minutes on an idle machine, and up
    /// to 15 minutes on a busy machine
    #[arg(long)]
    pub measure: bool,

    /// Find the number of workers and queues for N guests, each of which sends to the next
    #[arg(long, value_name = "N", requires = "rate", value_parser = clap::value_parser!(u16).range(1..=200))]
    pub guests: Option<u16>,

    /// Rate at which each guest sends, in Gb/s
    #[arg(long, value_name = "GBPS", requires = "guests", value_parser = rate)]
    pub rate: Option<f64>,

    /// The guests are those of QEMU on KVM, with vhost-user ports [default: guests of Xen]
    #[arg(long, requires = "guests")]
    pub vhost_user: bool,

    /// Length of a frame in bytes. For guests that use TCP segmentation offload, as most guests do,
    /// 64000 is a closer estimate
    #[arg(long, value_name = "BYTES", default_value_t = 1514, value_parser = clap::value_parser!(u32).range(64..=65535))]
    pub frame: u32,

    /// Number of CPUs of the host that the prediction is for [default: the number of CPUs of this
    /// host]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub cpus: Option<u16>,

    /// Seed of the hash that distributes streams over queues
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Predict even from inputs whose measurement failed; such a prediction begins with a warning
    #[arg(long)]
    pub force: bool,

    /// Print the assumptions of predictions
    #[arg(long)]
    pub assumptions: bool,

    /// File with the measured costs
    #[arg(long, value_name = "FILE", default_value = "CLONE/out/lab/model/inputs.json", value_parser = folder)]
    pub inputs: PathBuf,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (0.001..=10_000.0).contains(rate));
    rate.ok_or_else(|| "give Gb/s, 0.001 to 10000".into())
}

/// Carries out the command: by default, draws the curves from the inputs that were measured before.
///
/// # Errors
/// See [`ModelError`].
pub fn run(args: &Args) -> Result<(), ModelError> {
    if args.assumptions {
        print!("{ASSUMPTIONS}");
        return Ok(());
    }
    if args.measure {
        measure(args)?;
    }
    let inputs = Inputs::read(&args.inputs)?;
    if let Some(why) = inputs.doubt() {
        if !args.force {
            return Err(ModelError::Doubtful { path: args.inputs.display().to_string(), why });
        }
        println!("NOT TO BE TRUSTED: {why}.\n");
    }
    let Some((guests, rate)) = args.guests.zip(args.rate) else { return draw(args, &inputs) };
    let transport =
        if args.vhost_user { Transport::VhostUser } else { Transport::Grants(Era::New) };
    let (guests, bytes) = (guests.into(), args.frame.into());
    let question = Question { transport, guests, rate, bytes, seed: args.seed };
    let answer = question.answer(&inputs);
    let cpus = args
        .cpus
        .map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    print!("{}", question.explain(&inputs, &answer, cpus));
    Ok(())
}

fn measure(args: &Args) -> Result<(), ModelError> {
    interrupt::listen().map_err(|source| BenchError::Start { what: "handle signals", source })?;
    let (progress, mut meter) = (Progress::new(), Meter::new());
    let (inputs, points) = rounds::run(&mut meter, &progress)?;
    inputs.write(&args.inputs)?;
    println!("{}", check::table(&points));
    let [least, most] = meter.pace();
    if meter.disturbed > 0 {
        println!(
            "disturbed: {} measurements are kept although the machine was slow beside them (fixed \
             work took {least:.2} to {most:.2} ms); measure again when nothing else runs",
            meter.disturbed
        );
    }
    let path = Results::path(&args.inputs);
    let failed = |source| ModelError::File { path: path.display().to_string(), source };
    Results { began: inputs.began, points }.write(&path).map_err(failed)?;
    println!("inputs: {}", args.inputs.display());
    Ok(())
}

fn draw(args: &Args, inputs: &Inputs) -> Result<(), ModelError> {
    let points = Results::read(&Results::path(&args.inputs), inputs);
    let page = curves::draw(inputs, &points, &args.inputs)?;
    println!("predictions: {}", page.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bounded() {
        assert_eq!(rate("2.5"), Ok(2.5));
        for wrong in ["", "0", "-1", "NaN", "1e9"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
