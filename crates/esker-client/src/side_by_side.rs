//! What may take long at several servers is done at all of them at the same time.
//!
//! # Concurrency
//! A thread for each of those, which ends with the call; the caller does the others meanwhile. Where the system has no more
//! threads he does all, one after the other.

use std::thread::{Builder, ScopedJoinHandle, scope};

/// Calls `call` for all `ones`, beside each other for those of which `lasts` says that they may take long: what comes of each, in their
/// order.
pub(crate) fn side_by_side<A: Sync, T: Send>(
    ones: &[A],
    lasts: impl Fn(&A) -> bool,
    call: impl Fn(&A) -> T + Sync,
) -> Vec<T> {
    let call = &call;
    scope(|scope| {
        // All of them before anything is waited for.
        let threads: Vec<Option<ScopedJoinHandle<'_, T>>> = ones
            .iter()
            .map(|one| {
                let thread = Builder::new().name("esker-cluster".into());
                (ones.len() > 1 && lasts(one))
                    .then(|| thread.spawn_scoped(scope, move || call(one)).ok())
                    .flatten()
            })
            .collect();
        let begun: Vec<(&A, Result<T, ScopedJoinHandle<'_, T>>)> = ones
            .iter()
            .zip(threads)
            .map(|(one, thread)| (one, thread.map_or_else(|| Ok(call(one)), Err)))
            .collect();
        begun
            .into_iter()
            .map(|(one, begun)| begun.or_else(ScopedJoinHandle::join).unwrap_or_else(|_| call(one)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn those_that_last_are_done_beside_each_other_and_told_in_order() {
        let all_there = Barrier::new(3);
        let ones = [1, 20, 3, 40, 50];
        let told = side_by_side(
            &ones,
            |one| *one >= 20,
            |one| {
                if *one >= 20 {
                    // Ends only if the three are here at the same time.
                    all_there.wait();
                }
                one * 2
            },
        );
        assert_eq!(told, [2, 40, 6, 80, 100]);
    }
}
