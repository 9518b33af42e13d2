//! Ids as types of their own, so that one cannot be taken for another.

use std::fmt;

macro_rules! id {
    ($(#[$meta:meta])* $name:ident($inner:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(
    /// Number of a segment on its device, from 0.
    SegmentId(u32)
);
id!(
    /// Order of all writes of a store: the larger version of a key is the newer one. 64 bits never
    /// wrap: at 100 million writes a second they last 5,800 years.
    Version(u64)
);
id!(
    /// Place of a record in the log of one stream, counted from the store's first record there.
    Sequence(u64)
);
id!(
    /// Incarnation of a segment: grows with every reuse of any segment of the store.
    SegmentEpoch(u64)
);
id!(
    /// One scheduler thread of the run-time, from 0.
    CoreId(u16)
);

/// Identity of a store: random, drawn at format, part of every checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
