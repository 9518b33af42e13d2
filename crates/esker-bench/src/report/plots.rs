//! Bars and lines as SVG.

use crate::failure::{Failure, Outcome};
use crate::numbers::real;
use crate::statistics::Spread;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

/// Colours that stay apart for most eyes (Okabe and Ito), then darker ones.
const COLORS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(120, 60, 20),
    RGBColor(70, 20, 110),
    RGBColor(180, 190, 40),
];

fn color(number: usize) -> RGBColor {
    COLORS.get(number % COLORS.len()).copied().unwrap_or(BLACK)
}

const FONT: &str = "sans-serif";

/// How an axis goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    Log,
    /// Logarithmic in one over the share that is left: 90 %, 99 %, 99.9 % equally far apart.
    Nines,
}

/// A plot of bars: groups side by side, in each a bar for each system.
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) systems: Vec<String>,
    pub(crate) groups: Vec<(String, Vec<Option<Spread>>)>,
}

impl Bars {
    pub(crate) fn draw(&self) -> Outcome<String> {
        let mut svg = String::new();
        self.draw_to(&mut svg).map_err(|error| Failure::new(format!("plot: {error}")))?;
        Ok(svg)
    }

    fn draw_to(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let spreads = || self.groups.iter().flat_map(|(_, bars)| bars.iter().flatten());
        let most = spreads().map(|spread| spread.maximum).fold(1e-9, f64::max);
        let least =
            spreads().map(|spread| spread.minimum).filter(|v| *v > 0.0).fold(most, f64::min);
        let root = SVGBackend::with_string(svg, (1080, 380)).into_drawing_area();
        root.fill(&WHITE)?;
        let groups = real(self.groups.len() as u64);
        // Bars that would vanish beside others get a logarithmic axis.
        if most / least > 50.0 {
            let low = 10_f64.powf(least.log10().floor());
            self.chart(&root, groups, (low..most * 6.0).log_scale(), low)?;
        } else {
            self.chart(&root, groups, 0.0..most * 1.35, 0.0)?;
        }
        root.present()?;
        Ok(())
    }

    fn chart<Y>(
        &self,
        root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        groups: f64,
        y: Y,
        floor: f64,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
    {
        let mut chart = ChartBuilder::on(root)
            .caption(&self.title, (FONT, 17))
            .margin(10)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..groups, y)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .y_label_formatter(&|value| short(*value))
            .label_style((FONT, 13))
            .draw()?;
        let count = self.systems.len().max(1);
        let width = 0.84 / real(count as u64);
        for (number, system) in self.systems.iter().enumerate() {
            let color = color(number);
            let mut bars = Vec::new();
            let mut lines = Vec::new();
            for (place, (_, spreads)) in self.groups.iter().enumerate() {
                let Some(spread) = spreads.get(number).copied().flatten() else { continue };
                let left = real(place as u64) + 0.08 + real(number as u64) * width;
                let middle = left + width * 0.46;
                bars.push(Rectangle::new(
                    [(left, floor), (left + width * 0.92, spread.median)],
                    color.filled(),
                ));
                let ends = vec![(middle, spread.minimum), (middle, spread.maximum)];
                lines.push(PathElement::new(ends, BLACK.stroke_width(1)));
            }
            chart.draw_series(bars)?.label(system.as_str()).legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled())
            });
            chart.draw_series(lines)?;
        }
        for (place, (name, _)) in self.groups.iter().enumerate() {
            let at = chart.backend_coord(&(real(place as u64) + 0.5, floor));
            let style =
                (FONT, 14).into_text_style(root).pos(plotters::style::text_anchor::Pos::new(
                    plotters::style::text_anchor::HPos::Center,
                    plotters::style::text_anchor::VPos::Top,
                ));
            root.draw_text(name, &style, (at.0, at.1 + 8))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .label_font((FONT, 13))
            .draw()?;
        Ok(())
    }
}

/// One line of a plot.
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) color: usize,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) dots: bool,
}

/// A plot of lines.
pub(crate) struct Lines {
    pub(crate) title: String,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) x_scale: Scale,
    pub(crate) y_scale: Scale,
    pub(crate) curves: Vec<Curve>,
}

impl Lines {
    pub(crate) fn draw(&self) -> Outcome<String> {
        let mut svg = String::new();
        self.draw_to(&mut svg).map_err(|error| Failure::new(format!("plot: {error}")))?;
        Ok(svg)
    }

    fn draw_to(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter());
        let most = |pick: fn(&(f64, f64)) -> f64| points().map(pick).fold(1e-9, f64::max);
        let least = |pick: fn(&(f64, f64)) -> f64| points().map(pick).fold(f64::MAX, f64::min);
        let (x_most, y_most) = (most(|p| p.0), most(|p| p.1));
        let (x_least, y_least) = (least(|p| p.0).max(1e-6), least(|p| p.1).max(1e-6));
        let root = SVGBackend::with_string(svg, (540, 340)).into_drawing_area();
        root.fill(&WHITE)?;
        let x_log = (x_least * 0.9..x_most * 1.1).log_scale();
        let x_linear = if self.curves.iter().any(|curve| curve.dots) {
            let margin = (x_most - x_least) * 0.04;
            x_least - margin..x_most + margin
        } else {
            0.0..x_most
        };
        let y_linear = 0.0..y_most * 1.08;
        let y_log = (y_least..y_most * 1.2).log_scale();
        match (self.x_scale, self.y_scale) {
            (Scale::Linear, Scale::Linear) => self.chart(&root, x_linear, y_linear)?,
            (_, Scale::Linear) => self.chart(&root, x_log, y_linear)?,
            (Scale::Linear, _) => self.chart(&root, x_linear, y_log)?,
            (..) => self.chart(&root, x_log, y_log)?,
        }
        root.present()?;
        Ok(())
    }

    fn chart<X, Y>(
        &self,
        root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        x: X,
        y: Y,
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
    {
        let mut chart = ChartBuilder::on(root)
            .caption(&self.title, (FONT, 15))
            .margin(8)
            .x_label_area_size(42)
            .y_label_area_size(62)
            .build_cartesian_2d(x, y)?;
        let nines = self.y_scale == Scale::Nines;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .x_desc(self.x)
            .y_desc(self.y)
            .axis_desc_style((FONT, 13))
            .label_style((FONT, 12))
            .x_label_formatter(&|value| short(*value))
            .y_label_formatter(&|value| if nines { share(*value) } else { short(*value) })
            .draw()?;
        for curve in &self.curves {
            let color = color(curve.color);
            chart
                .draw_series(LineSeries::new(curve.points.iter().copied(), color.stroke_width(2)))?
                .label(curve.name.as_str())
                .legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 14, y)], color.stroke_width(3))
                });
            if curve.dots {
                let dots = curve.points.iter().map(|point| Circle::new(*point, 3, color.filled()));
                chart.draw_series(dots)?;
            }
        }
        let position =
            if nines { SeriesLabelPosition::LowerRight } else { SeriesLabelPosition::UpperLeft };
        chart
            .configure_series_labels()
            .position(position)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.2))
            .label_font((FONT, 12))
            .draw()?;
        Ok(())
    }
}

/// A number in few letters: `1.5 M`.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, " G"),
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e3 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        size if size >= 100.0 || scaled.fract().abs() < 1e-9 => 0,
        size if size >= 1.0 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}{unit}")
}

/// The share of which `1 / value` is left: 10 is 90 %, 100 is 99 %.
fn share(value: f64) -> String {
    let digits = match value {
        value if value < 101.0 => 0,
        value if value < 1001.0 => 1,
        _ => 2,
    };
    format!("{:.digits$} %", 100.0 - 100.0 / value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts: Vec<String> =
            [0.25, 7.0, 1500.0, 250_000.0, 2e6, 3.5e9].into_iter().map(short).collect();
        assert_eq!(texts, ["0.25", "7", "1.5 k", "250 k", "2 M", "3.5 G"]);
        assert_eq!([share(10.0), share(1000.0), share(10_000.0)], ["90 %", "99.9 %", "99.99 %"]);
    }

    #[test]
    fn plots_name_what_they_show() {
        let spread = Spread::of(&[10.0, 11.0, 12.0]);
        let bars = Bars {
            title: "title".to_owned(),
            systems: vec!["one".to_owned(), "two".to_owned()],
            groups: vec![("work".to_owned(), vec![Some(spread), None])],
        };
        let svg = bars.draw().unwrap();
        for word in ["<svg", "title", "one", "two", "work"] {
            assert!(svg.contains(word), "{word}");
        }
        for (x_scale, y_scale) in [
            (Scale::Linear, Scale::Linear),
            (Scale::Log, Scale::Nines),
            (Scale::Linear, Scale::Log),
            (Scale::Log, Scale::Linear),
        ] {
            let points = vec![(1.0, 2.0), (10.0, 200.0)];
            let curves = vec![Curve { name: "curve".to_owned(), color: 0, points, dots: true }];
            let lines = Lines { title: "t".to_owned(), x: "xx", y: "yy", x_scale, y_scale, curves };
            let svg = lines.draw().unwrap();
            assert!(svg.contains("curve") && svg.contains("xx") && svg.contains("yy"));
        }
    }
}
