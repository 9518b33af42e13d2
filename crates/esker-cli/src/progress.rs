//! Progress of long work, shown on a terminal and nowhere else.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line on standard error that says how far `what` is; nothing if that is no terminal.
pub(crate) fn progress(what: &'static str, all: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::stderr());
    // The template is a constant; a test makes sure that it is valid.
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

const TEMPLATE: &str = "{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_a_valid_form() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
