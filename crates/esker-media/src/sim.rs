//! Simulated media: devices in memory that fail, tear, forget and crash as real ones may.
//!
//! [`SimBlock`] is a block device, [`SimPm`] persistent memory, [`SimArchive`] a folder. The first two record a trace of every call, and a
//! replay of the trace enumerates, at every point before and after each call, the states that a
//! power cut at that point may leave behind. The workload runs once; only recoveries run per state.
//!
//! Everything random follows from a seed: the same seed, calls and order of calls give the same
//! trace and the same states.

pub mod archive;
pub mod asking;
pub mod block;
pub mod devices;
pub mod faults;
pub mod image;
pub mod pm;
pub mod pm_replay;
pub mod replay;
pub mod states;
pub mod trace;

pub use archive::SimArchive;
pub use asking::{Act, Asking, AskingMemory, Call, MemoryCall};
pub use block::{SimBlock, SimBlockOptions};
pub use devices::SimDevices;
pub use faults::{Fault, FaultKind, FaultPlan, Trigger};
pub use image::{Image, Initial};
pub use pm::{PmTrace, SimPm, SimPmOptions};
pub use pm_replay::{PmCrashState, PmReplay, pm_image_hash};
pub use replay::Replay;
pub use states::CrashState;
pub use trace::{PowerClock, SiteVisits, Trace};
