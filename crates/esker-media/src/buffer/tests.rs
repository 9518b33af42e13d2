//! Buffers: alignment, recycling, budgets.

use super::*;

#[test]
fn buffers_are_aligned_and_exactly_as_long_as_asked_for() {
    let pool = BufferPool::default();
    for length in [0, 1, 511, 4096, 4097, 65_536, POOLED_SIZE_BYTES_MAX, POOLED_SIZE_BYTES_MAX + 1]
    {
        let mut buffer = pool.get(length);
        assert_eq!(buffer.len(), length);
        assert_eq!(buffer.as_ptr().addr() % ALIGNMENT, 0);
        buffer.fill(0xA5);
        assert!(buffer.iter().all(|byte| *byte == 0xA5));
    }
}

#[test]
fn a_dropped_buffer_is_used_again_and_zeroed_on_request() {
    let pool = BufferPool::default();
    let mut first = pool.get(5000);
    first.fill(7);
    let address = first.as_ptr().addr();
    drop(first);
    assert_eq!(pool.idle_bytes(), 8192);
    let second = pool.get_zeroed(6000);
    assert_eq!(second.as_ptr().addr(), address, "same class, same memory");
    assert!(second.iter().all(|byte| *byte == 0));
    assert_eq!(pool.idle_bytes(), 0);
}

#[test]
fn a_buffer_dropped_elsewhere_returns_to_the_shard_it_came_from() {
    let pool = BufferPool::default();
    let buffer = pool.get(4096);
    let address = buffer.as_ptr().addr();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(buffer));
    });
    assert_eq!(pool.get(4096).as_ptr().addr(), address);
}

#[test]
fn idle_memory_stays_below_the_budget() {
    let pool = BufferPool::new(1 << 20);
    let buffers: Vec<_> = (0..1000).map(|_| pool.get(4096)).collect();
    drop(buffers);
    assert!(pool.idle_bytes() > 0);
    assert!(pool.idle_bytes() <= 1 << 20);
    drop(pool.get(POOLED_SIZE_BYTES_MAX * 2));
    assert!(pool.idle_bytes() <= 1 << 20, "large buffers are not kept");
}

#[test]
fn truncate_only_shortens() {
    let pool = BufferPool::default();
    let mut buffer = pool.copy_of(&[1, 2, 3, 4]);
    buffer.truncate(9);
    assert_eq!(&buffer[..], [1, 2, 3, 4]);
    buffer.truncate(2);
    assert_eq!(&buffer[..], [1, 2]);
}

#[test]
fn the_pool_outlives_nothing_it_lent() {
    let pool = BufferPool::default();
    let mut buffer = pool.get(100);
    drop(pool);
    buffer.fill(1);
    assert_eq!(buffer.len(), 100);
}
