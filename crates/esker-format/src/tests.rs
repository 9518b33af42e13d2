//! For tests: the structures here against the normative pages in `docs/format/`.

use std::fmt::Write as _;

/// A table of fields: name, offset and type of each, and last the size of all.
pub(crate) fn table_of(rows: &[(&str, usize, &str)]) -> String {
    let mut text = String::from("| offset | bytes | type | field |\n|---:|---:|---|---|\n");
    for pair in rows.windows(2) {
        let ((name, offset, kind), (_, end, _)) = (pair[0], pair[1]);
        writeln!(text, "| {offset} | {} | {kind} | `{name}` |", end - offset).unwrap();
    }
    let size = rows.last().map_or(0, |(_, size, _)| *size);
    writeln!(text, "\n{size} bytes.").unwrap();
    text
}

/// A table of the fields of a structure.
macro_rules! table {
    ($raw:ty: $($field:ident $kind:literal),* $(,)?) => {
        $crate::tests::table_of(&[
            $((stringify!($field), std::mem::offset_of!($raw, $field), $kind),)*
            ("", size_of::<$raw>(), ""),
        ])
    };
}
pub(crate) use table;

/// Compares parts of the page `name` with `parts`; with `REWRITE=1` in the environment it is first
/// brought up to date.
pub(crate) fn assert_has(name: &str, parts: &[(&str, String)]) {
    let path = format!("{}/../../docs/format/{name}", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(&path).unwrap();
    let mut expected = page.clone();
    for (name, text) in parts {
        let start = format!("<!-- {name} -->\n");
        let (before, rest) = expected.split_once(&start).expect(name);
        let (_, after) = rest.split_once("<!-- end -->").expect(name);
        expected = format!("{before}{start}{text}<!-- end -->{after}");
    }
    if std::env::var_os("REWRITE").is_some() {
        std::fs::write(&path, &expected).unwrap();
        return;
    }
    assert!(page == expected, "docs/format/{name} is stale: run this test with REWRITE=1");
}
