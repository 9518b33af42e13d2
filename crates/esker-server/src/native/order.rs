//! Which requests of a connection wait for which: the order of requests on one key (D1).
//!
//! Each request gets a [`Ticket`], which its task marks when its effect has taken place (a backup, when it begins),
//! and the tickets of those it has to wait for. Keys are told apart by their hashes: two keys with one hash
//! wait for each other without need, and nothing else comes of it. Who waits for a request relies on that it has waited itself: one
//! that never runs leaves its ticket behind, which is marked once all that it had to wait for are.
//!
//! # Invariants
//! - K1: a request waits only for requests that were admitted before it, so that nobody waits in a
//!   circle.
//! - K2: what is remembered is bounded by the requests in flight, those that never ran meanwhile, and their keys: marked tickets are
//!   thrown out each time that their number may have doubled, from the list of each key, too. Room for many goes with them, and when
//!   nothing is in flight. A request with more than [`KEYS_MAX`] keys waits for all, and all that come later for it, instead of being
//!   remembered by its keys.

use esker_base::{Error, ErrorKind, Result};
use esker_trt::local::Notify;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

/// Most keys by which one request is remembered.
pub(super) const KEYS_MAX: usize = 1024;
/// Marked tickets are looked for when there are so many entries.
const PRUNE_MIN: usize = 1024;
/// The same for the requests that read one key: there are many such lists.
const PRUNE_READS_MIN: usize = 16;
/// With so many requests that are done, what is known of them is forgotten once nothing is in flight.
const DONE_KEPT_MAX: usize = 64;
/// The same if they have named more keys than this: each is a note of its own.
const NOTES_KEPT_MAX: usize = 256;
/// Room for so many entries is kept.
const ROOM_MIN: usize = 4 * PRUNE_MIN;

/// Whether a request has taken effect.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    done: Cell<bool>,
    waiters: Notify,
    /// Of a request that never ran: how many of those it had to wait for are not marked.
    unmarked: Cell<usize>,
    /// Tickets of requests that never ran, to be marked after this one.
    behind: RefCell<Waits>,
}

impl Ticket {
    /// The effect has taken place, or never will.
    pub(super) fn mark(&self) {
        self.done.set(true);
        self.waiters.notify_all();
        // One after the other, however many stand in a row.
        let mut behind = self.behind.take();
        while let Some(next) = behind.pop() {
            let unmarked = next.unmarked.get().saturating_sub(1);
            next.unmarked.set(unmarked);
            if unmarked == 0 {
                next.done.set(true);
                next.waiters.notify_all();
                behind.append(&mut next.behind.borrow_mut());
            }
        }
    }

    /// The effect never takes place, or has: it is marked once all of `earlier` are. Until then those that wait for this one
    /// would overtake them.
    pub(super) fn mark_after(self: &Rc<Self>, earlier: &[Rc<Ticket>]) {
        let unmarked = || earlier.iter().filter(|earlier| !earlier.done.get());
        self.unmarked.set(unmarked().count());
        if self.unmarked.get() == 0 {
            return self.mark();
        }
        unmarked().for_each(|earlier| earlier.behind.borrow_mut().push(self.clone()));
    }

    /// Waits until it is marked.
    ///
    /// # Errors
    /// `Cancelled` at a shutdown: going on would change the order.
    pub(super) fn wait(&self) -> Result<()> {
        while !self.done.get() {
            self.waiters
                .wait()
                .map_err(|_| Error::new(ErrorKind::Cancelled, "wait for an earlier request"))?;
        }
        Ok(())
    }
}

/// What a request touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access<'k> {
    /// Reads keys with these hashes.
    Read(&'k [u64]),
    /// Writes them.
    Write(&'k [u64]),
    /// Comes after everything before it.
    AfterAll,
    /// Comes after everything before it, and before everything behind it.
    Between,
}

/// Takes hashes as they are: outsiders cannot foresee them.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Not for hashes; right all the same.
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[derive(Debug, Default)]
struct KeyState {
    write: Option<Rc<Ticket>>,
    /// Since the last write.
    reads: Vec<Rc<Ticket>>,
    /// With so many of them those that are done are thrown out.
    prune_at: usize,
}

impl KeyState {
    /// Throws out reads that are done, and the room for them (K2).
    fn prune(&mut self) {
        self.reads.retain(|read| !read.done.get());
        self.prune_at = PRUNE_READS_MIN.max(self.reads.len().saturating_mul(2));
        self.reads.shrink_to(self.prune_at);
    }
}

/// What is known of the requests that may be in flight.
#[derive(Debug)]
pub(super) struct Order {
    keys: HashMap<u64, KeyState, BuildHasherDefault<AsItIs>>,
    all: Vec<Rc<Ticket>>,
    barrier: Option<Rc<Ticket>>,
    prune_keys_at: usize,
    prune_all_at: usize,
    /// Keys that were named since all was forgotten last.
    notes: usize,
}

/// Those that a request waits for.
pub(super) type Waits = Vec<Rc<Ticket>>;

impl Order {
    pub(super) fn new() -> Order {
        Order {
            keys: HashMap::default(),
            all: Vec::new(),
            barrier: None,
            prune_keys_at: PRUNE_MIN,
            prune_all_at: PRUNE_MIN,
            notes: 0,
        }
    }

    /// Lines up a request: its ticket, and those it waits for.
    pub(super) fn line_up(&mut self, access: Access<'_>) -> (Rc<Ticket>, Waits) {
        self.prune();
        let ticket = Rc::new(Ticket::default());
        let mut waits = Waits::new();
        match access {
            Access::Read(hashes) => {
                waits.extend(self.barrier.iter().filter(|barrier| !barrier.done.get()).cloned());
                self.notes = self.notes.saturating_add(hashes.len());
                hashes.iter().for_each(|hash| self.read(*hash, &ticket, &mut waits));
            }
            Access::Write(hashes) => {
                waits.extend(self.barrier.iter().filter(|barrier| !barrier.done.get()).cloned());
                self.notes = self.notes.saturating_add(hashes.len());
                hashes.iter().for_each(|hash| self.write(*hash, &ticket, &mut waits));
            }
            Access::AfterAll | Access::Between => {
                waits.extend(self.all.iter().filter(|earlier| !earlier.done.get()).cloned());
            }
        }
        if access == Access::Between {
            // Whoever comes later waits for this one, which waits for all before.
            self.barrier = Some(ticket.clone());
            self.keys.clear();
            self.give_room_back();
        }
        self.all.push(ticket.clone());
        (ticket, waits)
    }

    fn read(&mut self, hash: u64, ticket: &Rc<Ticket>, waits: &mut Waits) {
        let state = self.keys.entry(hash).or_default();
        if state.reads.last().is_some_and(|last| Rc::ptr_eq(last, ticket)) {
            // It names the key again.
            return;
        }
        push(waits, state.write.as_ref(), ticket);
        if state.reads.len() >= state.prune_at.max(PRUNE_READS_MIN) {
            state.prune();
        }
        state.reads.push(ticket.clone());
    }

    fn write(&mut self, hash: u64, ticket: &Rc<Ticket>, waits: &mut Waits) {
        let state = self.keys.entry(hash).or_default();
        push(waits, state.write.as_ref(), ticket);
        state.reads.drain(..).for_each(|read| push(waits, Some(&read), ticket));
        state.write = Some(ticket.clone());
    }

    /// Nothing is in flight: nobody waits for anything, and nothing that takes much memory is kept.
    pub(super) fn all_done(&mut self) {
        let room = self.keys.capacity().max(self.all.capacity());
        let many = self.all.len() >= DONE_KEPT_MAX || self.notes > NOTES_KEPT_MAX;
        if room > ROOM_MIN || many {
            *self = Order::new();
        }
    }

    /// Throws out what nobody waits for any more (K2).
    fn prune(&mut self) {
        let many = self.all.len() >= self.prune_all_at;
        if many {
            self.all.retain(|ticket| !ticket.done.get());
            self.prune_all_at = PRUNE_MIN.max(self.all.len().saturating_mul(2));
            if self.all.capacity() > ROOM_MIN.max(self.all.len().saturating_mul(4)) {
                self.all.shrink_to(self.all.len().saturating_mul(2));
            }
        }
        // After so many requests most keys may be done, however many they are.
        if many || self.keys.len() >= self.prune_keys_at {
            self.keys.retain(|_, state| {
                state.prune();
                !state.reads.is_empty() || state.write.as_ref().is_some_and(|w| !w.done.get())
            });
            self.prune_keys_at = PRUNE_MIN.max(self.keys.len().saturating_mul(2));
            self.give_room_back();
        }
    }

    /// A map keeps the room of all that it ever had.
    fn give_room_back(&mut self) {
        if self.keys.capacity() > ROOM_MIN.max(self.keys.len().saturating_mul(4)) {
            self.keys.shrink_to(self.keys.len().saturating_mul(2));
        }
    }
}

/// Notes that `ticket` waits for `earlier`, unless that is done or itself.
fn push(waits: &mut Waits, earlier: Option<&Rc<Ticket>>, ticket: &Rc<Ticket>) {
    if let Some(earlier) = earlier
        && !earlier.done.get()
        && !Rc::ptr_eq(earlier, ticket)
    {
        waits.push(earlier.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits_for(waits: &Waits, tickets: &[&Rc<Ticket>]) -> bool {
        waits.len() == tickets.len()
            && tickets.iter().all(|ticket| waits.iter().any(|wait| Rc::ptr_eq(wait, ticket)))
    }

    #[test]
    fn writes_wait_for_what_was_before_on_their_keys_and_reads_for_writes() {
        let mut order = Order::new();
        let (first_read, waits) = order.line_up(Access::Read(&[1]));
        assert!(waits.is_empty());
        let (second_read, waits) = order.line_up(Access::Read(&[1, 2]));
        assert!(waits.is_empty(), "reads go side by side");
        let (write, waits) = order.line_up(Access::Write(&[1]));
        assert!(waits_for(&waits, &[&first_read, &second_read]));
        let (_, waits) = order.line_up(Access::Read(&[2]));
        assert!(waits.is_empty());
        let (_, waits) = order.line_up(Access::Read(&[1]));
        assert!(waits_for(&waits, &[&write]));
        write.mark();
        let (_, waits) = order.line_up(Access::Read(&[1]));
        assert!(waits.is_empty(), "it has taken effect");
    }

    #[test]
    fn requests_that_name_a_key_again_and_again_are_noted_once() {
        let mut order = Order::new();
        let tickets: Vec<_> = (0..20).map(|_| order.line_up(Access::Read(&[7; 1000])).0).collect();
        assert_eq!(order.keys.get(&7).map(|state| state.reads.len()), Some(20));
        let (_, waits) = order.line_up(Access::Write(&[7]));
        assert!(waits_for(&waits, &tickets.iter().collect::<Vec<_>>()));
    }

    /// Room for so many reads.
    fn room_for_reads(order: &Order) -> usize {
        order.keys.values().map(|state| state.reads.capacity()).sum()
    }

    #[test]
    fn nothing_is_kept_of_what_an_idle_client_asked_for() {
        for count in [1, 10, 1000] {
            let mut order = Order::new();
            let keys: Vec<u64> = (0..count).collect();
            for _ in 0..1000 {
                order.line_up(Access::Read(&keys)).0.mark();
                order.all_done();
                let kept = room_for_reads(&order);
                assert!(kept <= 1024, "{kept} of requests for {count} keys");
            }
        }
    }

    /// A connection on which there is always something in flight.
    #[test]
    fn reads_of_many_keys_that_are_done_take_no_room_while_something_is_in_flight() {
        let mut order = Order::new();
        let keys: Vec<u64> = (0..1000).collect();
        let (in_flight, _) = order.line_up(Access::Read(&keys));
        for _ in 1..PRUNE_MIN {
            order.line_up(Access::Read(&keys)).0.mark();
        }
        let room = room_for_reads(&order);
        assert!(room <= 64 * keys.len(), "{room}");
        let (_, waits) = order.line_up(Access::Write(&keys[..1]));
        assert!(waits_for(&waits, &[&in_flight]));
        // Many at once, of which one is left.
        let lines = (0..PRUNE_MIN).map(|_| order.line_up(Access::Read(&[2000])).0);
        let lines: Vec<_> = lines.collect();
        lines.iter().skip(1).for_each(|ticket| ticket.mark());
        for _ in 0..2 * PRUNE_MIN {
            order.line_up(Access::Read(&[2001])).0.mark();
        }
        let state = order.keys.get(&2000).expect("one is in flight");
        assert_eq!(state.reads.len(), 1);
        assert!(state.reads.capacity() <= 64, "{}", state.reads.capacity());
    }

    #[test]
    fn a_request_that_names_a_key_twice_does_not_wait_for_itself() {
        let mut order = Order::new();
        let (_, waits) = order.line_up(Access::Write(&[1, 1]));
        assert!(waits.is_empty());
        let (_, waits) = order.line_up(Access::Read(&[2, 2]));
        assert!(waits.is_empty());
    }

    #[test]
    fn what_is_between_waits_for_all_before_and_all_behind_wait_for_it() {
        let mut order = Order::new();
        let (one, _) = order.line_up(Access::Write(&[1]));
        let (two, _) = order.line_up(Access::Read(&[2]));
        let (after, waits) = order.line_up(Access::AfterAll);
        assert!(waits_for(&waits, &[&one, &two]));
        let (other, waits) = order.line_up(Access::Write(&[3]));
        assert!(waits.is_empty(), "nobody waits for a sync");
        let (between, waits) = order.line_up(Access::Between);
        assert!(waits_for(&waits, &[&one, &two, &after, &other]));
        let (_, waits) = order.line_up(Access::Read(&[1]));
        assert!(waits_for(&waits, &[&between]));
    }

    #[test]
    fn a_request_that_never_ran_lets_nobody_overtake_what_it_had_to_wait_for() {
        let mut order = Order::new();
        let (first, _) = order.line_up(Access::Write(&[1]));
        let (other, _) = order.line_up(Access::Write(&[2]));
        let mut never = Vec::new();
        for _ in 0..100_000 {
            let (ticket, waits) = order.line_up(Access::Write(&[1, 2]));
            ticket.mark_after(&waits);
            never.push(ticket);
        }
        let (_, waits) = order.line_up(Access::Read(&[1]));
        assert!(waits_for(&waits, &[&never[never.len() - 1]]));
        first.mark();
        let (_, waits) = order.line_up(Access::Read(&[1]));
        assert!(waits_for(&waits, &[&never[never.len() - 1]]), "it had to wait for both");
        other.mark();
        assert!(never.iter().all(|ticket| ticket.done.get()));
        let (_, waits) = order.line_up(Access::Read(&[1, 2]));
        assert!(waits.is_empty());
    }

    #[test]
    fn what_is_done_is_forgotten() {
        let mut order = Order::new();
        let (kept, _) = order.line_up(Access::Write(&[u64::MAX]));
        for key in 0..100_000 {
            order.line_up(Access::Write(&[key])).0.mark();
            order.line_up(Access::Read(&[u64::MAX - 1])).0.mark();
        }
        assert!(order.keys.len() <= 2 * PRUNE_MIN, "{}", order.keys.len());
        assert!(order.all.len() <= 2 * PRUNE_MIN, "{}", order.all.len());
        let reads = order.keys.get(&(u64::MAX - 1)).map_or(0, |state| state.reads.len());
        assert!(reads <= PRUNE_MIN, "{reads}");
        let (_, waits) = order.line_up(Access::Read(&[u64::MAX]));
        assert!(waits_for(&waits, &[&kept]));
    }

    #[test]
    fn room_for_many_keys_is_given_back_once_they_are_done() {
        let mut order = Order::new();
        let hashes: Vec<u64> = (0..256 * KEYS_MAX as u64).collect();
        let lines = hashes.chunks(KEYS_MAX).map(|keys| order.line_up(Access::Write(keys)).0);
        let tickets: Vec<_> = lines.collect();
        assert!(order.keys.capacity() >= hashes.len());
        tickets.iter().for_each(|ticket| ticket.mark());
        for key in 0..3 * PRUNE_MIN as u64 {
            order.line_up(Access::Write(&[u64::MAX - key])).0.mark();
        }
        assert!(order.keys.capacity() <= 8 * PRUNE_MIN, "{}", order.keys.capacity());
        assert!(order.all.capacity() <= 8 * PRUNE_MIN, "{}", order.all.capacity());
        let (between, waits) = order.line_up(Access::Between);
        assert!(waits.is_empty());
        between.mark();
        let lines = hashes.chunks(KEYS_MAX).map(|keys| order.line_up(Access::Read(keys)).0);
        lines.collect::<Vec<_>>().iter().for_each(|ticket| ticket.mark());
        order.all_done();
        assert_eq!(order.keys.capacity(), 0);
        assert!(order.line_up(Access::Write(&[1])).1.is_empty());
    }
}
