//! Units of size, and rounding to a power of two.

/// Bytes in a kibibyte.
pub const KIB: u64 = 1 << 10;
/// Bytes in a mebibyte.
pub const MIB: u64 = 1 << 20;
/// Bytes in a gibibyte.
pub const GIB: u64 = 1 << 30;

/// `value` rounded up to a multiple of `unit`, a power of two; `None` past the end of `u64`.
#[must_use]
pub const fn round_up(value: u64, unit: u64) -> Option<u64> {
    match value.checked_add(unit - 1) {
        Some(sum) => Some(sum & !(unit - 1)),
        None => None,
    }
}

/// `value` rounded down to a multiple of `unit`, a power of two.
#[must_use]
pub const fn round_down(value: u64, unit: u64) -> u64 {
    value & !(unit - 1)
}

/// Reads a size as people write it: `64`, `512K`, `32MiB`, `8GiB`, `1T`. Units are powers of two.
#[must_use]
pub fn parse_size_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Writes a size as people read it: `8 GiB`, `1.5 MiB`, `12 B`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
pub fn format_size_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    for (size, name) in UNITS {
        if bytes >= size {
            let value = bytes as f64 / size as f64;
            let digits = usize::from(!bytes.is_multiple_of(size));
            return format!("{value:.digits$} {name}");
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size_bytes("8GiB"), Some(8 * GIB));
        assert_eq!(parse_size_bytes(" 512k "), Some(512 * KIB));
        assert_eq!(parse_size_bytes("64"), Some(64));
        assert_eq!(parse_size_bytes("1 x"), None);
        assert_eq!(parse_size_bytes("99999999999999T"), None);
        assert_eq!(parse_size_bytes(""), None);
    }

    #[test]
    fn sizes_are_written_as_people_read_them() {
        assert_eq!(format_size_bytes(8 * GIB), "8 GiB");
        assert_eq!(format_size_bytes(3 * MIB / 2), "1.5 MiB");
        assert_eq!(format_size_bytes(12), "12 B");
    }

    #[test]
    fn rounding_up_stops_at_the_end() {
        assert_eq!(round_up(1, 512), Some(512));
        assert_eq!(round_up(512, 512), Some(512));
        assert_eq!(round_up(u64::MAX, 512), None);
        assert_eq!(round_down(1023, 512), 512);
    }
}
