//! Sites: named places where durability or integrity is decided, and the switch that turns one off.
//!
//! Every flush, fence, write that commits, checksum check, version comparison and wait for
//! durability has a [`Site`], declared once in a table (see [`sites!`](crate::sites)). Simulated
//! media count visits per site; a build with the feature `mutants` can disable one site, and the
//! test suite must then fail (`cargo xtask crash --mutants`).
//!
//! Without the feature, [`Site::disabled`] is a constant `false` that the compiler removes.

use std::fmt;

/// What a site decides, and so what disabling it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SiteKind {
    /// A read from media. Never disabled; faults are injected here.
    Read,
    /// A write to media. Never disabled; faults are injected and crashes happen here.
    Write,
    /// A write that is durable when it returns; disabled, it is an ordinary write.
    DurableWrite,
    /// A flush of a block device, or of cache lines; disabled, it does nothing.
    Flush,
    /// A fence of persistent memory; disabled, it does nothing.
    Fence,
    /// A comparison of checksums; disabled, everything matches.
    Checksum,
    /// A comparison of versions, epochs or identities; disabled, everything passes.
    Compare,
    /// A wait between a write and its acknowledgement; disabled, nobody waits.
    Wait,
}

impl SiteKind {
    /// Whether a device sees such a site pass.
    #[must_use]
    pub const fn is_media(self) -> bool {
        matches!(
            self,
            SiteKind::Read
                | SiteKind::Write
                | SiteKind::DurableWrite
                | SiteKind::Flush
                | SiteKind::Fence
        )
    }

    /// Whether a mutant can turn such a site off.
    #[must_use]
    pub const fn can_be_disabled(self) -> bool {
        !matches!(self, SiteKind::Read | SiteKind::Write)
    }
}

/// A named place in the code. Two sites are equal if their names are.
#[derive(Clone, Copy)]
pub struct Site {
    name: &'static str,
    kind: SiteKind,
    id: u64,
}

impl Site {
    /// A site; use [`sites!`](crate::sites), which also lists it.
    #[must_use]
    pub const fn new(name: &'static str, kind: SiteKind) -> Self {
        Site { name, kind, id: fnv1a(name.as_bytes()) }
    }

    /// Name: `engine.part.step`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// What it decides.
    #[must_use]
    pub const fn kind(self) -> SiteKind {
        self.kind
    }

    /// A number that stands for the name.
    #[must_use]
    pub const fn id(self) -> u64 {
        self.id
    }

    /// Whether this run is the mutant that lacks this site. Always false without `mutants`.
    #[inline]
    #[must_use]
    pub fn disabled(self) -> bool {
        #[cfg(feature = "mutants")]
        {
            switch::disabled(self)
        }
        #[cfg(not(feature = "mutants"))]
        false
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Site {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Site {}

const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        hash = (hash ^ *first as u64).wrapping_mul(0x0100_0000_01B3);
        rest = tail;
    }
    hash
}

/// The switch of a build with the feature `mutants`.
#[cfg(feature = "mutants")]
pub mod switch {
    use super::Site;
    use std::sync::atomic::{AtomicU64, Ordering};

    static DISABLED: AtomicU64 = AtomicU64::new(0);
    static REACHED: AtomicU64 = AtomicU64::new(0);

    /// Turns `site` off for the whole process, or none.
    pub fn disable(site: Option<Site>) {
        REACHED.store(0, Ordering::SeqCst);
        DISABLED.store(site.map_or(0, Site::id), Ordering::SeqCst);
    }

    /// How often the disabled site was reached since it was turned off. A mutant that survives
    /// because nothing ever came there tells something else than one that nobody noticed.
    pub fn reached() -> u64 {
        REACHED.load(Ordering::SeqCst)
    }

    #[inline]
    pub(super) fn disabled(site: Site) -> bool {
        let hit = DISABLED.load(Ordering::Relaxed) == site.id();
        if hit {
            REACHED.fetch_add(1, Ordering::Relaxed);
        }
        hit
    }
}

/// Declares a table of sites: constants, and a list `ALL` of them.
///
/// ```
/// esker_base::sites! {
///     /// The flush that makes a batch durable before anyone hears of it.
///     pub COMMIT_FLUSH: Flush = "example.commit.flush";
/// }
/// assert_eq!(ALL[0].name(), "example.commit.flush");
/// ```
#[macro_export]
macro_rules! sites {
    ($($(#[$meta:meta])* $vis:vis $name:ident: $kind:ident = $text:literal;)*) => {
        $($(#[$meta])* $vis const $name: $crate::Site =
            $crate::Site::new($text, $crate::SiteKind::$kind);)*
        /// Every site of this table.
        pub const ALL: &[$crate::Site] = &[$($name),*];
    };
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the table's visibility is the macro's")]
mod tests {
    use super::*;

    crate::sites! {
        /// A flush.
        pub ONE: Flush = "test.one";
        /// A check.
        pub TWO: Checksum = "test.two";
    }

    #[test]
    fn sites_are_equal_by_name() {
        assert_eq!(ONE, Site::new("test.one", SiteKind::Flush));
        assert_ne!(ONE, TWO);
        assert_eq!(ALL.len(), 2);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn only_the_chosen_site_is_disabled_and_visits_are_counted() {
        switch::disable(Some(ONE));
        assert!(ONE.disabled() && !TWO.disabled());
        assert_eq!(switch::reached(), 1);
        switch::disable(None);
        assert!(!ONE.disabled());
    }
}
