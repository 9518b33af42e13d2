//! Several block devices as one: units of the address space go round the members.
//!
//! Capacity, bandwidth and requests in flight add up. With units of whole segments, what an engine
//! writes in one piece lies on one member, and a durable write costs one flush of one device.
//! `docs/format/stripe.md` has the layout; `set` finds out whether devices are the members of a set.
//!
//! # Invariants
//! - T1: a flush covers every member that was written since its last flush, and at open every
//!   member: what an earlier process left in a cache counts as written.
//! - T2: once a flush or durable write of one member failed, no later one of the device succeeds
//!   until it is opened again, whichever member it concerns (F12).
//! - T3: whatever crosses units is split, in order; a durable write is durable on every member it
//!   touches when it returns.
//! - B1 to B4 of [`crate::block`]. A crash may lose unflushed writes of one member and keep those of
//!   others, as it may with blocks of one device.
//!
//! # Concurrency
//! Any number of calls at once. Flushes of several members run side by side: as tasks in a task, on
//! threads of their own elsewhere. No lock.
//!
//! # Failure
//! An error of a member names it, with the offset there, and fails the call. Nothing is repaired or
//! retried: without a member there is no device.

use crate::block::{BlockDevice, BlockGeometry, Counters, total_length};
use esker_base::units::format_size_bytes;
use esker_base::{Error, ErrorKind, Result, Site};
use esker_format::stripe::StripeLayout;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

mod set;
pub mod sites;

pub use set::NewSet;

/// One member.
#[derive(Debug)]
struct Member {
    device: Arc<dyn BlockDevice>,
    /// Counts writes that returned.
    written: AtomicU64,
    /// So many of them are durable.
    flushed: AtomicU64,
}

/// Several devices as one. See the module's text.
#[derive(Debug)]
pub struct StripedDevice {
    name: String,
    members: Vec<Member>,
    layout: StripeLayout,
    geometry: BlockGeometry,
    /// A flush or durable write failed (T2).
    failed: AtomicBool,
}

impl StripedDevice {
    /// The device that `members` are, in whatever order they are given; where there is none, `new`
    /// says how to make it. Members of different sizes give what the smallest one has.
    ///
    /// # Errors
    /// `InvalidArgument` naming the member that is missing, of another set, there twice, or no member
    /// at all, or that is too small; `Unsupported` if blocks do not fit; `UnsupportedFormat`;
    /// `Corrupted`; `Io`.
    pub fn open(members: Vec<Arc<dyn BlockDevice>>, new: Option<&NewSet>) -> Result<Self> {
        let (members, layout) = set::assemble(members, new)?;
        let block = members.iter().map(|member| member.geometry().block_size_bytes).max();
        let block_size_bytes = block.unwrap_or(512);
        let size_bytes = layout.size_bytes().unwrap_or(0);
        let size_bytes = size_bytes - size_bytes % u64::from(block_size_bytes);
        let names: Vec<&str> = members.iter().map(|member| member.name()).collect();
        let name = names.join(" + ");
        // T1: nobody knows what an earlier process left in the members' caches.
        let member =
            |device| Member { device, written: AtomicU64::new(1), flushed: AtomicU64::new(0) };
        Ok(StripedDevice {
            name,
            members: members.into_iter().map(member).collect(),
            layout,
            geometry: BlockGeometry { size_bytes, block_size_bytes },
            failed: AtomicBool::new(false),
        })
    }

    /// Place and number of members, if `device` alone is a member of a striped device.
    ///
    /// # Errors
    /// `Io`.
    pub fn membership(device: &dyn BlockDevice) -> Result<Option<(u32, u32)>> {
        set::membership(device)
    }

    /// Number of members.
    #[must_use]
    pub fn member_count(&self) -> usize {
        self.members.len()
    }

    /// Bytes that lie side by side on one member.
    #[must_use]
    pub fn unit_size_bytes(&self) -> u64 {
        self.layout.unit_size_bytes
    }

    fn check(&self, operation: &'static str, offset: u64, length: u64) -> Result<()> {
        self.geometry.check(operation, offset, length).map_err(|error| error.device(&self.name))
    }

    /// T2.
    fn check_not_failed(&self, operation: &'static str) -> Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Io, operation)
                .device(&self.name)
                .context("an earlier flush failed; open the device again"));
        }
        Ok(())
    }

    /// Gives each piece of `length` bytes at `offset` to `visit`: member, offset there, length.
    fn each_piece(
        &self,
        mut offset: u64,
        length: u64,
        mut visit: impl FnMut(&Member, u64, u64) -> Result<()>,
    ) -> Result<()> {
        let end = offset + length;
        while offset < end {
            let (index, at, rest) = self.layout.place(offset);
            let size = rest.min(end - offset);
            let Some(member) = self.members.get(index) else { break };
            visit(member, at, size)?;
            offset += size;
        }
        Ok(())
    }

    /// The member that holds all of a range, if one does, and the offset there.
    fn whole(&self, offset: u64, length: u64) -> Option<(&Member, u64)> {
        let (index, at, rest) = self.layout.place(offset);
        self.members.get(index).filter(|_| length <= rest).map(|member| (member, at))
    }

    fn write(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        one: impl Fn(&Member, u64, &[IoSlice<'_>]) -> Result<()>,
    ) -> Result<()> {
        let length = total_length(bufs);
        if let Some((member, at)) = self.whole(offset, length) {
            return one(member, at, bufs);
        }
        let mut pieces = bufs.to_vec();
        let mut rest = pieces.as_mut_slice();
        self.each_piece(offset, length, |member, at, size| {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let mut left = size;
            let mut now = Vec::with_capacity(rest.len());
            for buf in rest.iter() {
                let part: &[u8] = buf.get(..buf.len().min(left)).unwrap_or(&[]);
                left -= part.len();
                now.push(IoSlice::new(part));
                if left == 0 {
                    break;
                }
            }
            one(member, at, &now)?;
            drop(now);
            IoSlice::advance_slices(&mut rest, size);
            Ok(())
        })
    }

    /// Flushes members side by side; the first error, if there is one.
    fn flush_members(due: &[&Member], site: Site) -> Result<()> {
        let Some((first, others)) = due.split_first() else { return Ok(()) };
        let flush = |member: &Member| member.device.flush(site);
        if others.is_empty() {
            return flush(first);
        }
        if esker_trt::in_task() {
            let tasks: Vec<_> = others
                .iter()
                .map(|member| {
                    let device = Arc::clone(&member.device);
                    (*member, esker_trt::spawn(move || device.flush(site)))
                })
                .collect();
            let mut result = flush(first);
            for (member, task) in tasks {
                // A task that could not be started did nothing: it is done here.
                result = result.and(task.join().unwrap_or_else(|_| flush(member)));
            }
            return result;
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = others
                .iter()
                .map(|member| {
                    let thread = std::thread::Builder::new().name("esker-flush".into());
                    (*member, thread.spawn_scoped(scope, || flush(member)).ok())
                })
                .collect();
            let mut result = flush(first);
            for (member, thread) in threads {
                let ended = thread.and_then(|thread| thread.join().ok());
                result = result.and(ended.unwrap_or_else(|| flush(member)));
            }
            result
        })
    }
}

impl BlockDevice for StripedDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> BlockGeometry {
        self.geometry
    }

    fn report(&self) -> String {
        let members: Vec<String> =
            self.members.iter().map(|member| member.device.report()).collect();
        format!(
            "striped over {} members in units of {}: {}",
            members.len(),
            format_size_bytes(self.layout.unit_size_bytes),
            members.join("; ")
        )
    }

    fn is_nowait(&self) -> bool {
        self.members.iter().all(|member| member.device.is_nowait())
    }

    fn answers_at_once(&self) -> bool {
        self.members.iter().all(|member| member.device.answers_at_once())
    }

    fn counters(&self) -> Counters {
        self.members.iter().map(|member| member.device.counters()).sum()
    }

    fn reads_bytes(&self) -> bool {
        self.members.iter().all(|member| member.device.reads_bytes())
    }

    fn read_at(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        let length = buf.len() as u64;
        let checked = self.read_geometry().check("read device", offset, length);
        checked.map_err(|error| error.device(&self.name))?;
        if let Some((member, at)) = self.whole(offset, length) {
            return member.device.read_at(site, at, buf);
        }
        let mut rest = buf;
        self.each_piece(offset, length, |member, at, size| {
            let size = usize::try_from(size).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = std::mem::take(&mut rest).split_at_mut(size);
            rest = later;
            member.device.read_at(site, at, now)
        })
    }

    fn read_vectored_at(&self, site: Site, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let length = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.check("read device", offset, length)?;
        if let Some((member, at)) = self.whole(offset, length) {
            return member.device.read_vectored_at(site, at, bufs);
        }
        let mut at = offset;
        for buf in bufs {
            self.read_at(site, at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn read_many_at(&self, site: Site, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        let mut of_members: Vec<Vec<(u64, &mut [u8])>> = Vec::new();
        of_members.resize_with(self.members.len(), Vec::new);
        for (offset, buf) in reads {
            let length = buf.len() as u64;
            let checked = self.read_geometry().check("read device", *offset, length);
            checked.map_err(|error| error.device(&self.name))?;
            let (index, at, rest) = self.layout.place(*offset);
            match of_members.get_mut(index) {
                Some(reads) if length <= rest => reads.push((at, &mut **buf)),
                _ => self.read_at(site, *offset, buf)?,
            }
        }
        let read = |(member, reads): (&Member, &mut Vec<_>)| {
            if reads.is_empty() { Ok(()) } else { member.device.read_many_at(site, reads) }
        };
        self.members.iter().zip(&mut of_members).try_for_each(read)
    }

    fn write_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.check("write device", offset, total_length(bufs))?;
        self.write(offset, bufs, |member, at, bufs| {
            let written = member.device.write_at(site, at, bufs);
            // Before the caller hears of it; a failed write may have happened in part.
            member.written.fetch_add(1, Ordering::SeqCst);
            written
        })
    }

    fn write_durable_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        const OPERATION: &str = "write device durably";
        self.check(OPERATION, offset, total_length(bufs))?;
        self.check_not_failed(OPERATION)?;
        let written = self.write(offset, bufs, |member, at, bufs| {
            let written = member.device.write_durable_at(site, at, bufs);
            if site.disabled() {
                member.written.fetch_add(1, Ordering::SeqCst);
            }
            written
        });
        match written {
            // One that failed meanwhile may have been told of this one's bytes.
            Ok(()) => self.check_not_failed(OPERATION),
            Err(error) => {
                if error.kind() != ErrorKind::NoSpace {
                    self.failed.store(true, Ordering::Release);
                }
                Err(error)
            }
        }
    }

    fn flush(&self, site: Site) -> Result<()> {
        const OPERATION: &str = "flush device";
        if site.disabled() {
            return Ok(());
        }
        self.check_not_failed(OPERATION)?;
        // T1. A flush under way on behalf of others does not count: it may have begun too early.
        let mut due: Vec<(&Member, u64)> = Vec::with_capacity(self.members.len());
        for member in &self.members {
            let written = member.written.load(Ordering::SeqCst);
            if member.flushed.load(Ordering::SeqCst) < written {
                due.push((member, written));
            }
        }
        if sites::FLUSH_COVERS.disabled() {
            due.truncate(1);
        }
        let members: Vec<&Member> = due.iter().map(|(member, _)| *member).collect();
        Self::flush_members(&members, site).inspect_err(|_| {
            self.failed.store(true, Ordering::Release);
        })?;
        for (member, written) in due {
            member.flushed.fetch_max(written, Ordering::SeqCst);
        }
        self.check_not_failed(OPERATION)
    }

    fn discard(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.check("discard range", offset, length)?;
        self.each_piece(offset, length, |member, at, size| member.device.discard(site, at, size))
    }

    fn prepare(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.check("prepare range", offset, length)?;
        self.each_piece(offset, length, |member, at, size| member.device.prepare(site, at, size))
    }

    fn reserve(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.check("reserve range", offset, length)?;
        self.each_piece(offset, length, |member, at, size| member.device.reserve(site, at, size))
    }
}

#[cfg(test)]
mod tests;
