//! Medians of repetitions, and how far another run may be off by chance.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Chance that a further run of the same thing lies within [`Spread::low`] to [`Spread::high`].
pub const CONFIDENCE: f64 = 0.95;

/// Repetitions below which nothing is said of spread: Student's t of two is so wide that it means nothing.
pub const REPETITIONS_MIN: usize = 3;

/// What several repetitions of one figure say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Number of repetitions.
    pub count: usize,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub minimum: f64,
    /// The largest.
    pub maximum: f64,
    /// Lower end of where the median of as many further repetitions lies with [`CONFIDENCE`]; the median itself
    /// if there are fewer than [`REPETITIONS_MIN`], which say nothing of spread.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
}

/// The median; not a number if there is none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle.wrapping_sub(1)), sorted.get(middle)) {
        (Some(low), Some(high)) if sorted.len().is_multiple_of(2) => f64::midpoint(*low, *high),
        (_, Some(middle)) => *middle,
        _ => f64::NAN,
    }
}

impl Spread {
    /// Of positive values: their logarithms are taken to be normal, as noise multiplies. The interval is that
    /// of the difference of two medians of as many repetitions each, with Student's t for the unknown
    /// variance. It knows of noise within the run that gave the values, and not of what changed between
    /// runs.
    #[must_use]
    pub fn of(values: &[f64]) -> Spread {
        let median = median(values);
        let fold = |pick: fn(f64, f64) -> f64| values.iter().copied().fold(median, pick);
        let (minimum, maximum) = (fold(f64::min), fold(f64::max));
        let count = values.len();
        let mut spread = Spread { count, median, minimum, maximum, low: median, high: median };
        let logs: Vec<f64> = values.iter().filter(|value| **value > 0.0).map(|v| v.ln()).collect();
        if count < REPETITIONS_MIN || logs.len() < count {
            return spread;
        }
        let real = crate::numbers::real(count as u64);
        let mean = logs.iter().sum::<f64>() / real;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (real - 1.0);
        // The median of n normal values has the variance pi/2n, in the limit; two of them differ by twice that.
        let error = (variance * std::f64::consts::PI / real).sqrt();
        let quantile = StudentsT::new(0.0, 1.0, real - 1.0)
            .map_or(f64::NAN, |t| t.inverse_cdf(f64::midpoint(1.0, CONFIDENCE)));
        spread.low = median * (-quantile * error).exp();
        spread.high = median * (quantile * error).exp();
        spread
    }

    /// The same, with an interval that reaches at least `share` of the median to both sides.
    #[must_use]
    pub fn widened(mut self, share: f64) -> Spread {
        self.low = self.low.min(self.median / (1.0 + share));
        self.high = self.high.max(self.median * (1.0 + share));
        self
    }

    /// Half the width of the interval, in per cent of the median; `None` if nothing is known of it.
    #[must_use]
    pub fn per_cent(&self) -> Option<f64> {
        (self.count >= REPETITIONS_MIN).then(|| ((self.high / self.low).sqrt() - 1.0) * 100.0)
    }

    /// The same in words.
    #[must_use]
    pub fn words(&self) -> String {
        match self.per_cent() {
            None => "-".to_owned(),
            Some(wide) if wide > 999.0 => "> 999 %".to_owned(),
            Some(wide) => format!("{wide:.1} %"),
        }
    }

    /// Whether a value lies in the interval.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

    #[test]
    fn medians_are_in_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert!(median(&[]).is_nan());
    }

    /// Noise of one kind: of many pairs of runs, as many agree as the confidence says, within what the
    /// approximation of the median's variance costs.
    #[test]
    fn another_run_lies_in_the_spread_as_often_as_it_says() {
        let mut rng = Rng::from_seed(4);
        let mut noise = || {
            let sum: f64 =
                (0..12).map(|_| crate::workload::distribution::uniform(&mut rng)).sum::<f64>()
                    - 6.0;
            1000.0 * (0.1 * sum).exp()
        };
        for count in [3, 5] {
            let mut inside = 0;
            for _ in 0..4000 {
                let run: Vec<f64> = (0..count).map(|_| noise()).collect();
                let other: Vec<f64> = (0..count).map(|_| noise()).collect();
                inside += usize::from(Spread::of(&run).contains(median(&other)));
            }
            let share = f64::from(u32::try_from(inside).unwrap()) / 4000.0;
            assert!((0.93..0.98).contains(&share), "{count}: {share}");
        }
    }

    #[test]
    fn one_repetition_has_no_spread() {
        let spread = Spread::of(&[5.0]);
        assert!(spread.contains(5.0) && !spread.contains(5.1));
        assert_eq!(spread.per_cent(), None);
        assert_eq!(Spread::of(&[5.0, 9.0]).words(), "-");
    }
}
