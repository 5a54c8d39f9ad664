//! Filters of packets: programs of the classic Berkeley Packet Filter, as `tcpdump -ddd` prints
//! them.
//!
//! A program comes from outside of the process. [`Filter::new`] decodes it into instructions of its
//! own and refuses what the Linux kernel refuses: unknown instructions, jumps out of the program,
//! memory words that do not exist, division by a constant zero, shifts by constants of 32 and more,
//! and a last instruction that does not return. All jumps go forward, so a filter ends after at
//! most [`MAX_INSTRUCTIONS`] steps. Only checked instructions are executed.
//!
//! Differences to the kernel: memory words are zero at first, and negative offsets, by which the
//! kernel offers metadata of a packet, lie outside of the packet.

use thiserror::Error;

/// Most instructions of a program.
pub const MAX_INSTRUCTIONS: usize = 2048;

/// Words of memory that a program has.
const MEMORY: usize = 16;

/// One instruction as programs exchange it: `struct sock_filter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// Operation, size of the operand, and where the operand comes from.
    pub code: u16,
    /// Instructions to skip when a comparison holds.
    pub jt: u8,
    /// Instructions to skip when it does not.
    pub jf: u8,
    /// The constant.
    pub k: u32,
}

/// Why a program is refused. Instructions are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadFilter {
    /// There is none.
    #[error("the program has no instructions")]
    Empty,
    /// There are too many.
    #[error("the program has more than {MAX_INSTRUCTIONS} instructions")]
    TooLong,
    /// The code means nothing.
    #[error("instruction {0} is unknown")]
    Unknown(usize),
    /// The instruction jumps out of the program.
    #[error("instruction {0} jumps out of the program")]
    Jump(usize),
    /// There is no such word of memory.
    #[error("instruction {0} uses memory that does not exist")]
    Memory(usize),
    /// The instruction divides by the constant zero.
    #[error("instruction {0} divides by zero")]
    Division(usize),
    /// The instruction shifts by more bits than a word has.
    #[error("instruction {0} shifts by more than 31 bits")]
    Shift(usize),
    /// The last instruction does not return.
    #[error("the last instruction does not return")]
    NoReturn,
}

/// The bytes that a filter looks at.
pub trait Packet {
    /// The `N` bytes at `offset`; `None` when they are not all there.
    fn load<const N: usize>(&mut self, offset: u32) -> Option<[u8; N]>;

    /// Length of the packet in bytes.
    fn length(&self) -> u32;
}

/// Where the second operand comes from.
#[derive(Clone, Copy, Debug)]
enum Operand {
    Constant(u32),
    Index,
}

#[derive(Clone, Copy, Debug)]
enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Or,
    And,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug)]
enum Comparison {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    Word,
    Half,
    Byte,
}

/// An instruction that was checked.
#[derive(Clone, Copy, Debug)]
enum Step {
    Load(Size, u32),
    LoadIndexed(Size, u32),
    LoadLength,
    LoadConstant(u32),
    LoadMemory(u8),
    IndexConstant(u32),
    IndexMemory(u8),
    IndexLength,
    /// Four times the lower half of the byte at this offset: the length of an IPv4 header.
    IndexHeader(u32),
    Store(u8),
    StoreIndex(u8),
    Compute(Arithmetic, Operand),
    Negate,
    /// Skips this many instructions.
    Jump(u16),
    Branch(Comparison, Operand, u8, u8),
    Return(u32),
    ReturnAccumulator,
    IndexFromAccumulator,
    AccumulatorFromIndex,
}

/// A program that was checked.
#[derive(Clone, Debug)]
pub struct Filter {
    steps: Box<[Step]>,
}

impl Filter {
    /// Checks a program.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn new(program: &[Instruction]) -> Result<Filter, BadFilter> {
        if program.len() > MAX_INSTRUCTIONS {
            return Err(BadFilter::TooLong);
        }
        let check = |(at, instruction): (usize, &Instruction)| {
            let step = decode(at, instruction)?;
            let behind = program.len() - at - 1;
            match step {
                Step::Jump(by) if usize::from(by) >= behind => Err(BadFilter::Jump(at)),
                Step::Branch(.., jt, jf) if usize::from(jt.max(jf)) >= behind => {
                    Err(BadFilter::Jump(at))
                }
                step => Ok(step),
            }
        };
        let steps: Box<[Step]> = program.iter().enumerate().map(check).collect::<Result<_, _>>()?;
        match steps.last() {
            Some(Step::Return(_) | Step::ReturnAccumulator) => Ok(Filter { steps }),
            Some(_) => Err(BadFilter::NoReturn),
            None => Err(BadFilter::Empty),
        }
    }

    /// How many bytes of the packet the program accepts; zero: it rejects the packet. A load from
    /// outside of the packet, and a division by zero, end the program with zero.
    pub fn run(&self, packet: &mut impl Packet) -> u32 {
        self.evaluate(packet).unwrap_or(0)
    }

    fn evaluate(&self, packet: &mut impl Packet) -> Option<u32> {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; MEMORY]);
        let mut at = 0;
        // Jumps go forward: each step runs at most once.
        while let Some(step) = self.steps.get(at) {
            at += 1;
            match *step {
                Step::Load(size, k) => a = load(packet, size, k)?,
                Step::LoadIndexed(size, k) => a = load(packet, size, x.checked_add(k)?)?,
                Step::LoadLength => a = packet.length(),
                Step::LoadConstant(k) => a = k,
                Step::LoadMemory(word) => a = *memory.get(usize::from(word))?,
                Step::IndexConstant(k) => x = k,
                Step::IndexMemory(word) => x = *memory.get(usize::from(word))?,
                Step::IndexLength => x = packet.length(),
                Step::IndexHeader(k) => x = (load(packet, Size::Byte, k)? & 0xf) << 2,
                Step::Store(word) => *memory.get_mut(usize::from(word))? = a,
                Step::StoreIndex(word) => *memory.get_mut(usize::from(word))? = x,
                Step::Compute(operation, operand) => a = operation.apply(a, operand.value(x))?,
                Step::Negate => a = a.wrapping_neg(),
                Step::Jump(by) => at += usize::from(by),
                Step::Branch(comparison, operand, jt, jf) => {
                    let holds = comparison.holds(a, operand.value(x));
                    at += usize::from(if holds { jt } else { jf });
                }
                Step::Return(k) => return Some(k),
                Step::ReturnAccumulator => return Some(a),
                Step::IndexFromAccumulator => x = a,
                Step::AccumulatorFromIndex => a = x,
            }
        }
        None
    }
}

fn load(packet: &mut impl Packet, size: Size, offset: u32) -> Option<u32> {
    match size {
        Size::Word => packet.load(offset).map(u32::from_be_bytes),
        Size::Half => packet.load(offset).map(u16::from_be_bytes).map(u32::from),
        Size::Byte => packet.load(offset).map(u8::from_be_bytes).map(u32::from),
    }
}

impl Operand {
    #[inline]
    fn value(self, x: u32) -> u32 {
        match self {
            Operand::Constant(k) => k,
            Operand::Index => x,
        }
    }
}

impl Arithmetic {
    #[inline]
    fn apply(self, a: u32, by: u32) -> Option<u32> {
        Some(match self {
            Arithmetic::Add => a.wrapping_add(by),
            Arithmetic::Sub => a.wrapping_sub(by),
            Arithmetic::Mul => a.wrapping_mul(by),
            Arithmetic::Div => a.checked_div(by)?,
            Arithmetic::Mod => a.checked_rem(by)?,
            Arithmetic::Or => a | by,
            Arithmetic::And => a & by,
            Arithmetic::Xor => a ^ by,
            Arithmetic::ShiftLeft => a.checked_shl(by).unwrap_or(0),
            Arithmetic::ShiftRight => a.checked_shr(by).unwrap_or(0),
        })
    }
}

impl Comparison {
    #[inline]
    fn holds(self, a: u32, with: u32) -> bool {
        match self {
            Comparison::Equal => a == with,
            Comparison::Greater => a > with,
            Comparison::GreaterOrEqual => a >= with,
            Comparison::AnyBit => a & with != 0,
        }
    }
}

/// The lowest bits of a code: what kind of instruction it is (`BPF_CLASS`).
const CLASS: u16 = 7;
/// The bit of arithmetic and jumps that takes the index for the second operand (`BPF_X`).
const BY_INDEX: u16 = 8;

/// Decodes instruction number `at`, without a check of its jump targets.
fn decode(at: usize, instruction: &Instruction) -> Result<Step, BadFilter> {
    let Instruction { code, jt, jf, k } = *instruction;
    let word = || match u8::try_from(k) {
        Ok(word) if usize::from(word) < MEMORY => Ok(word),
        _ => Err(BadFilter::Memory(at)),
    };
    Ok(match code {
        0x20 => Step::Load(Size::Word, k),
        0x28 => Step::Load(Size::Half, k),
        0x30 => Step::Load(Size::Byte, k),
        0x40 => Step::LoadIndexed(Size::Word, k),
        0x48 => Step::LoadIndexed(Size::Half, k),
        0x50 => Step::LoadIndexed(Size::Byte, k),
        0x80 => Step::LoadLength,
        0x00 => Step::LoadConstant(k),
        0x60 => Step::LoadMemory(word()?),
        0x01 => Step::IndexConstant(k),
        0x61 => Step::IndexMemory(word()?),
        0x81 => Step::IndexLength,
        0xb1 => Step::IndexHeader(k),
        0x02 => Step::Store(word()?),
        0x03 => Step::StoreIndex(word()?),
        0x84 => Step::Negate,
        0x05 => Step::Jump(u16::try_from(k).map_err(|_| BadFilter::Jump(at))?),
        0x06 => Step::Return(k),
        0x16 => Step::ReturnAccumulator,
        0x07 => Step::IndexFromAccumulator,
        0x87 => Step::AccumulatorFromIndex,
        _ => {
            let operand = if code & BY_INDEX == 0 { Operand::Constant(k) } else { Operand::Index };
            let operation = code & !(CLASS | BY_INDEX);
            match code & CLASS {
                4 => Step::Compute(arithmetic(at, operation, operand)?, operand),
                5 => {
                    let comparison = comparison(operation).ok_or(BadFilter::Unknown(at))?;
                    Step::Branch(comparison, operand, jt, jf)
                }
                _ => return Err(BadFilter::Unknown(at)),
            }
        }
    })
}

fn arithmetic(at: usize, operation: u16, operand: Operand) -> Result<Arithmetic, BadFilter> {
    let arithmetic = match operation {
        0x00 => Arithmetic::Add,
        0x10 => Arithmetic::Sub,
        0x20 => Arithmetic::Mul,
        0x30 => Arithmetic::Div,
        0x40 => Arithmetic::Or,
        0x50 => Arithmetic::And,
        0x60 => Arithmetic::ShiftLeft,
        0x70 => Arithmetic::ShiftRight,
        0x90 => Arithmetic::Mod,
        0xa0 => Arithmetic::Xor,
        _ => return Err(BadFilter::Unknown(at)),
    };
    match (arithmetic, operand) {
        (Arithmetic::Div | Arithmetic::Mod, Operand::Constant(0)) => Err(BadFilter::Division(at)),
        (Arithmetic::ShiftLeft | Arithmetic::ShiftRight, Operand::Constant(32..)) => {
            Err(BadFilter::Shift(at))
        }
        _ => Ok(arithmetic),
    }
}

fn comparison(operation: u16) -> Option<Comparison> {
    Some(match operation {
        0x10 => Comparison::Equal,
        0x20 => Comparison::Greater,
        0x30 => Comparison::GreaterOrEqual,
        0x40 => Comparison::AnyBit,
        _ => return None,
    })
}

/// A packet that lies in one piece.
impl Packet for &[u8] {
    fn load<const N: usize>(&mut self, offset: u32) -> Option<[u8; N]> {
        crate::bytes::chunk(self, offset as usize).copied()
    }

    fn length(&self) -> u32 {
        u32::try_from((**self).len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests;
