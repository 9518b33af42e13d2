//! Carving, pooling and the three kinds of guard.

use crate::overflow;
use crate::stack::{Guard, StackPool, USABLE_MIN};
use corosensei::stack::Stack;
use parking_lot::Mutex;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Held by those who take all protected pages, and those who need one.
static PROTECTED_PAGES: Mutex<()> = Mutex::new(());

fn size(stack: &impl Stack) -> usize {
    stack.base().get() - stack.limit().get()
}

#[test]
fn stacks_are_disjoint_aligned_and_have_room() {
    let page = rustix::param::page_size();
    let mut pool = StackPool::new(20_000);
    let stacks: Vec<_> = (0..600).map(|_| pool.take().unwrap()).collect();
    let mut ranges: Vec<_> =
        stacks.iter().map(|stack| (stack.limit().get(), stack.base().get())).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    assert!(ranges.iter().all(|(limit, base)| limit % page == 0 && base % page == 0));
    assert_eq!(size(&stacks[0]), 20_000_usize.next_multiple_of(page) + page);
    let least = USABLE_MIN.next_multiple_of(page);
    assert_eq!(size(&StackPool::new(1).take().unwrap()), least + page);
}

/// As where a page is larger than 4 KiB: the kernel guards no less.
#[test]
fn a_guard_is_a_page_whatever_its_size() {
    const LARGE: usize = 64 << 10;
    let _some = PROTECTED_PAGES.lock();
    for guard in [Guard::Region, Guard::Protected, Guard::Canary] {
        let mut pool = StackPool { guard, ..StackPool::with_pages(USABLE_MIN, LARGE) };
        let stack = pool.take().unwrap();
        assert_eq!(size(&stack), 2 * LARGE);
        let (limit, canary) = (stack.limit().get(), stack.canary().addr());
        assert_eq!(canary, limit + LARGE - 8, "right below the stack");
        assert!(stack.is_intact());
        let is_in_guard = |offset| overflow::is_in_guard(limit + offset);
        let seen = [0, LARGE - 1, LARGE, 2 * LARGE - 1].map(is_in_guard);
        assert_eq!(seen, [true, true, false, false]);
        if pool.guard != Guard::Canary {
            // What is guarded is not read: the kernel refuses to write from there.
            let refused = |offset| !is_readable(limit + offset);
            let seen = [0, LARGE / 2, LARGE - 1, LARGE].map(refused);
            assert_eq!(seen, [true, true, true, false], "{guard:?}");
        }
    }
}

/// Whether the kernel can read the byte there.
fn is_readable(address: usize) -> bool {
    let (_reader, writer) = UnixStream::pair().unwrap();
    let byte = std::ptr::with_exposed_provenance(address);
    // SAFETY: the kernel looks whether the byte can be read, and refuses otherwise.
    unsafe { libc::write(writer.as_raw_fd(), byte, 1) == 1 }
}

#[test]
fn a_stack_that_was_given_back_is_handed_out_again() {
    let mut pool = StackPool::new(USABLE_MIN);
    let stack = pool.take().unwrap();
    let base = stack.base();
    pool.give(stack);
    assert_eq!(pool.take().unwrap().base(), base);
}

#[test]
fn idle_stacks_beyond_a_bound_give_their_memory_back() {
    let mut pool = StackPool::new(USABLE_MIN);
    let stacks: Vec<_> = (0..2000).map(|_| pool.take().unwrap()).collect();
    stacks.into_iter().for_each(|stack| pool.give(stack));
    assert_eq!(pool.warm.len(), super::WARM_MAX);
    assert!(pool.cold.len() >= 2000 - super::WARM_MAX);
    assert!(pool.cold.iter().all(|stack| !stack.warm));
}

#[test]
fn this_kernel_grants_real_guards() {
    let _some = PROTECTED_PAGES.lock();
    let mut pool = StackPool::new(USABLE_MIN);
    let stack = pool.take().unwrap();
    assert_ne!(pool.guard, Guard::Canary);
    assert!(stack.is_intact());
}

#[test]
fn a_canary_tells_of_an_overflow() {
    let mut pool = StackPool::with_guard(USABLE_MIN, Guard::Canary);
    let stack = pool.take().unwrap();
    assert!(stack.is_intact());
    super::tests_damage(&stack);
    assert!(!stack.is_intact());
}

#[test]
fn protected_pages_stand_in_for_guard_regions() {
    let _some = PROTECTED_PAGES.lock();
    let mut pool = StackPool::with_guard(USABLE_MIN, Guard::Protected);
    assert_eq!(pool.take().unwrap().guard, Guard::Protected);
    assert!(Guard::from_number(Guard::Protected.number()).words().contains("protected"));
}

/// As many cores have, on a kernel without guard regions.
#[test]
fn protected_pages_of_all_pools_leave_mappings_for_others() {
    let _all = PROTECTED_PAGES.lock();
    let mut pools: Vec<StackPool> = Vec::new();
    let mut stacks = Vec::new();
    while pools.last().is_none_or(|pool| pool.guard == Guard::Protected) {
        let mut pool = StackPool::with_guard(USABLE_MIN, Guard::Protected);
        stacks.extend((0..1000).map(|_| pool.take().expect("a stack")));
        pools.push(pool);
    }
    assert!(pools.len() > 1, "one pool has them all");
    let page = rustix::param::page_size();
    let protections = [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE].into_iter().cycle();
    let mapped: Vec<_> = protections
        .take(100)
        .map(|protection| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address that the kernel chooses.
            unsafe { libc::mmap(std::ptr::null_mut(), page, protection, flags, -1, 0) }
        })
        .collect();
    let refused = mapped.iter().filter(|start| **start == libc::MAP_FAILED).count();
    let thread = std::thread::Builder::new().spawn(|| 7);
    for start in mapped.into_iter().filter(|start| *start != libc::MAP_FAILED) {
        // SAFETY: our own mapping, which nothing points into.
        unsafe { libc::munmap(start, page) };
    }
    assert_eq!(refused, 0);
    assert_eq!(thread.expect("a thread starts").join().expect("no panic"), 7);
    drop((stacks, pools));
    let mut again = StackPool::with_guard(USABLE_MIN, Guard::Protected);
    assert_eq!(again.take().expect("a stack").guard, Guard::Protected, "they came back");
}
