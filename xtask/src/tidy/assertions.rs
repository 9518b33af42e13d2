//! No test without an assertion: a test that cannot fail is a defect.

use super::Source;
use std::collections::{BTreeMap, BTreeSet};

/// Words that can fail a test.
const ASSERTING: [&str; 8] = [
    "assert",
    "panic!",
    "expect![",
    ".unwrap_err()",
    ".expect_err(",
    "should_panic",
    "unreachable!",
    "return Err(",
];

/// Tests of the file that assert nothing, directly, through functions of the same file, or through
/// one of `helpers`.
pub(crate) fn complaints(source: &Source, helpers: &BTreeSet<String>) -> Vec<String> {
    let functions = functions(&source.text);
    functions
        .iter()
        .filter(|(_, function)| function.is_test)
        .filter(|(name, _)| !asserts(name, &functions, &mut BTreeSet::new()))
        .filter(|(_, function)| {
            !helpers.iter().any(|helper| function.body.contains(&format!(".{helper}(")))
        })
        .map(|(name, _)| format!("{}: test {name} asserts nothing", source.path))
        .collect()
}

/// Methods of test harnesses that assert: tests may leave it to them.
pub(crate) fn helpers(sources: &[Source]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in sources.iter().filter(|source| source.path.ends_with("/harness.rs")) {
        let functions = functions(&source.text);
        let asserting = functions.keys().filter(|name| {
            functions.get(*name).is_some_and(|function| !function.is_test)
                && asserts(name, &functions, &mut BTreeSet::new())
        });
        found.extend(asserting.map(|name| (*name).to_owned()));
    }
    found
}

struct Function<'a> {
    body: &'a str,
    is_test: bool,
}

fn asserts<'a>(
    name: &'a str,
    functions: &'a BTreeMap<&str, Function<'_>>,
    seen: &mut BTreeSet<&'a str>,
) -> bool {
    let Some(function) = functions.get(name) else { return false };
    if !seen.insert(name) {
        return false;
    }
    ASSERTING.iter().any(|word| function.body.contains(word))
        || functions.keys().any(|other| {
            let called = function.body.contains(&format!("{other}("))
                || function.body.contains(&format!("({other})"));
            called && asserts(other, functions, seen)
        })
        // A helper of another file that asserts says so by its name.
        || function.body.contains("check_")
}

/// The functions of a file by name, with attributes and bodies.
fn functions(text: &str) -> BTreeMap<&str, Function<'_>> {
    let mut found = BTreeMap::new();
    let mut rest = text;
    while let Some(place) = rest.find("fn ") {
        let (before, after) = rest.split_at(place);
        let name_end = after[3..].find(|c: char| !c.is_alphanumeric() && c != '_');
        let name = &after[3..3 + name_end.unwrap_or(after.len() - 3)];
        let attributes = before.rsplit("\n\n").next().unwrap_or(before);
        let attributes = attributes.rsplit('}').next().unwrap_or(attributes);
        if let Some(body) = body(after) {
            let whole = &text[text.len() - rest.len() + place - attributes.len()..]
                [..attributes.len() + body];
            let is_test = attributes.contains("#[test]");
            found.insert(name, Function { body: whole, is_test });
        }
        rest = &after[3..];
    }
    found
}

/// Length of a function's text up to its closing brace; `None` for a declaration.
fn body(text: &str) -> Option<usize> {
    let open = text.find('{')?;
    if text.find(';').is_some_and(|end| end < open) && !text[..open].contains('[') {
        return None;
    }
    let mut depth = 0usize;
    for (place, letter) in text.char_indices().skip(open) {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return Some(place + 1);
        }
    }
    Some(text.len())
}
