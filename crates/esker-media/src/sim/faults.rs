//! Which calls of a simulated medium fail, and how.
//!
//! A [`FaultPlan`] lists faults; each is triggered by chance (from the medium's seed) or by the
//! number of the call, once or from there on. Sweeps fail call 1, then call 2, and so on, until the
//! scenario passes untouched.

use esker_base::rng::Rng;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// A read, write, flush or discard fails, whichever comes: for sweeps over all calls.
    AnyError,
    /// A read fails.
    ReadError,
    /// A read ends early and is reported as failed.
    ShortRead,
    /// A read delivers one wrong bit; the medium is right.
    ReadFlip,
    /// One bit of what is read turns over on the medium, for good.
    RestFlip,
    /// A write fails; part of it may have happened.
    WriteError,
    /// A write ends early and is reported as failed; its beginning happened.
    ShortWrite,
    /// A write is acknowledged and never happens.
    LostWrite,
    /// A write is acknowledged and happens 1 to 64 blocks off.
    MisdirectedWrite,
    /// A write finds no space.
    NoSpace,
    /// A flush fails; what it covered is unknown.
    FlushError,
    /// A call never completes: its caller gives up with `Timeout` after a long simulated time.
    Stuck,
}

/// Kinds of calls that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Read,
    Write,
    Flush,
    Discard,
}

impl FaultKind {
    fn applies_to(self, call: Call) -> bool {
        use FaultKind as K;
        match self {
            K::AnyError | K::Stuck => true,
            K::ReadError | K::ShortRead | K::ReadFlip | K::RestFlip => call == Call::Read,
            K::WriteError | K::ShortWrite | K::LostWrite | K::MisdirectedWrite | K::NoSpace => {
                call == Call::Write
            }
            K::FlushError => call == Call::Flush,
        }
    }
}

/// When a fault happens. Calls are counted from 1, and only those to which the fault applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At this call, once.
    Nth(u64),
    /// At this call and every later one.
    FromNth(u64),
    /// At each call, `numerator` times out of `denominator`.
    Chance {
        /// How often,
        numerator: u64,
        /// of how many.
        denominator: u64,
    },
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// When.
    pub trigger: Trigger,
}

/// The faults of one medium. The default has none.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    faults: Vec<(Fault, u64)>,
    fired: u64,
}

impl FaultPlan {
    /// No faults.
    #[must_use]
    pub fn none() -> Self {
        FaultPlan::default()
    }

    /// Adds a fault.
    #[must_use]
    pub fn with(mut self, kind: FaultKind, trigger: Trigger) -> Self {
        self.faults.push((Fault { kind, trigger }, 0));
        self
    }

    /// Whether nothing is planned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// How many calls failed by this plan so far.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Counts a call and decides whether, and how, it fails: the first fault that applies.
    pub(crate) fn next(&mut self, call: Call, rng: &mut Rng) -> Option<FaultKind> {
        let mut chosen = None;
        for (fault, count) in &mut self.faults {
            if !fault.kind.applies_to(call) {
                continue;
            }
            *count += 1;
            let hit = match fault.trigger {
                Trigger::Nth(nth) => *count == nth,
                Trigger::FromNth(nth) => *count >= nth,
                Trigger::Chance { numerator, denominator } => rng.chance(numerator, denominator),
            };
            if hit && chosen.is_none() {
                chosen = Some(fault.kind);
            }
        }
        self.fired += u64::from(chosen.is_some());
        chosen
    }
}

#[cfg(test)]
mod tests;
