//! Latency by percentile as an SVG, as HdrHistogram's plots have it: the further right, the rarer; both axes are
//! logarithmic, so that the tail is as large as the middle.

use super::output;
use crate::errors::{self, UserError};
use plotters::coord::combinators::IntoLogRange;
use plotters::prelude::{
    BLACK, ChartBuilder, Color, IntoDrawingArea, IntoTextStyle, LineSeries, PathElement, RGBColor, SVGBackend, Text,
    WHITE,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::{Path, PathBuf};

const SIZE: (u32, u32) = (960, 560);
/// Told apart also by those who do not see all colours, and in grey. Source: Okabe and Ito.
const COLOURS: &[RGBColor] = &[
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
/// A tick of the axis, pixels.
const TICK: i32 = 5;
const MEDIAN: &str = "50%";
/// More lines than this tell nothing.
const RUNS_MAX: usize = 21;

/// A run: what it is called, and its percentiles with their latencies, µs.
#[derive(Clone, Debug)]
pub struct Run {
    pub label: String,
    /// Mode, rate, durability; empty if it is not known.
    pub title: String,
    pub distribution: Vec<(f64, f64)>,
}

/// `camus bench plot`: several runs over each other.
pub fn files(out: &Path, files: &[PathBuf], labels: &[String]) -> Result<(), UserError> {
    if files.len() > RUNS_MAX {
        return Err(errors::bench_flags(
            "too many runs for one plot",
            &format!("at most {RUNS_MAX} can be told apart"),
        ));
    }
    if labels.len() > files.len() {
        return Err(errors::bench_flags(
            "there are more labels than files",
            "--label goes with the files in their order",
        ));
    }
    let wrong = |why: &str| Err(errors::bench_plot_out(out, why));
    if out.extension().is_none_or(|e| !e.eq_ignore_ascii_case("svg")) {
        return wrong("its name does not end in .svg");
    }
    if files.iter().any(|file| output::is_same(out, file)) {
        return wrong("it is one of the runs");
    }
    output::check_svg(out)?;
    let mut runs = Vec::with_capacity(files.len());
    for (i, file) in files.iter().enumerate() {
        let stem = || file.file_stem().map_or_else(|| file.display().to_string(), |s| s.to_string_lossy().into_owned());
        let label = labels.get(i).cloned().unwrap_or_else(stem);
        let (title, distribution) = read(file)?;
        runs.push(Run { label, title, distribution });
    }
    let svg = draw(&runs).map_err(|why| errors::bench_file(out, &why))?;
    std::fs::write(out, svg).map_err(|e| errors::bench_file(out, &e.to_string()))
}

/// Title and distribution in a file that `--json` has written.
fn read(file: &Path) -> Result<(String, Vec<(f64, f64)>), UserError> {
    let wrong = |why: &str| errors::bench_file(file, why);
    let text = std::fs::read_to_string(file).map_err(|e| wrong(&e.to_string()))?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| wrong(&format!("it is no JSON: {e}")))?;
    let points = json.get("distribution").ok_or_else(|| wrong("it has no distribution: no bench has written it"))?;
    let points: Vec<(f64, f64)> = serde_json::from_value(points.clone()).map_err(|e| wrong(&e.to_string()))?;
    match points.iter().any(|p| p.0 < 100.0) {
        true => Ok((json["title"].as_str().unwrap_or_default().to_owned(), points)),
        false => Err(wrong("its distribution is empty")),
    }
}

/// One in how many requests is slower than percentile `percentile`.
fn one_in(percentile: f64) -> f64 {
    100.0 / (100.0 - percentile)
}

/// What the titles of all runs have in common, and of each what it has for itself. Their parts are parted by `; `.
fn titles(runs: &[Run]) -> (String, Vec<String>) {
    let parts: Vec<Vec<&str>> =
        runs.iter().map(|run| run.title.split("; ").filter(|part| !part.is_empty()).collect()).collect();
    let is_common = |part: &&str| parts.iter().all(|parts| parts.contains(part));
    let common: Vec<&str> = parts.first().into_iter().flatten().copied().filter(is_common).collect();
    let own = parts.iter().map(|parts| {
        let own: Vec<&str> = parts.iter().copied().filter(|part| !is_common(part)).collect();
        own.join("; ")
    });
    (common.join("; "), own.collect())
}

/// `90%`, `99.9%`: where one in 10, in 1,000 is slower. Between them nothing is written.
fn percentile_of(one_in: f64) -> String {
    let nines = one_in.log10().round();
    match (one_in.log10() - nines).abs() < 1e-6 {
        true => {
            let digits = (nines as usize).saturating_sub(2);
            format!("{:.digits$}%", 100.0 - 100.0 / one_in)
        }
        false => String::new(),
    }
}

fn latency(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", us / 1e6),
        us if us >= 1e3 => format!("{} ms", us / 1e3),
        us => format!("{us} us"),
    }
}

/// Draws the runs. Each line ends at its last percentile below 100.
pub fn draw(runs: &[Run]) -> Result<String, String> {
    let (title, own) = titles(runs);
    let title = if title.is_empty() { "latency by percentile".to_owned() } else { title };
    let label = |i: usize| match own[i].as_str() {
        "" => runs[i].label.clone(),
        own => format!("{} ({own})", runs[i].label),
    };
    let lines: Vec<Vec<(f64, f64)>> = runs
        .iter()
        .map(|run| run.distribution.iter().filter(|p| p.0 < 100.0).map(|p| (one_in(p.0), p.1.max(0.1))).collect())
        .collect();
    let points = || lines.iter().flatten();
    let right = 10f64.powf(points().map(|p| p.0).fold(10.0, f64::max).log10().ceil());
    let bottom = 10f64.powf(points().map(|p| p.1).fold(f64::INFINITY, f64::min).min(1e9).log10().floor());
    let top = 10f64.powf(points().map(|p| p.1).fold(bottom * 10.0, f64::max).log10().ceil());
    let mut svg = String::new();
    {
        let failed = |e: &dyn std::fmt::Display| e.to_string();
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(|e| failed(&e))?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            // The last tick's text is as wide as this on each side of it.
            .margin_right(48)
            .caption(&title, ("sans-serif", 18))
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d((1.0..right).log_scale(), (bottom..top).log_scale())
            .map_err(|e| failed(&e))?;
        chart
            .configure_mesh()
            .x_desc("percentile")
            .y_desc("latency")
            .x_label_formatter(&|x| percentile_of(*x))
            .y_label_formatter(&|y| latency(*y))
            .light_line_style(RGBColor(240, 240, 240))
            .bold_line_style(RGBColor(200, 200, 200))
            .draw()
            .map_err(|e| failed(&e))?;
        for (i, line) in lines.into_iter().enumerate() {
            let style = COLOURS[i % COLOURS.len()].stroke_width(2);
            chart
                .draw_series(LineSeries::new(line, style))
                .map_err(|e| failed(&e))?
                .label(label(i))
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 24, y)], style));
        }
        chart
            .configure_series_labels()
            .position(plotters::chart::SeriesLabelPosition::UpperLeft)
            .legend_area_size(32)
            .margin(12)
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(160, 160, 160))
            .draw()
            .map_err(|e| failed(&e))?;
        // Between the powers of ten the axis has no ticks of its own, and the median is what is looked for first.
        let (x, y) = chart.backend_coord(&(2.0, bottom));
        let style = ("sans-serif", 12).into_text_style(&area).pos(Pos::new(HPos::Center, VPos::Top));
        area.draw(&PathElement::new(vec![(x, y), (x, y + TICK)], BLACK)).map_err(|e| failed(&e))?;
        area.draw(&Text::new(MEDIAN, (x, y + TICK + 6), style)).map_err(|e| failed(&e))?;
        area.present().map_err(|e| failed(&e))?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_names_the_nines() {
        let named: Vec<String> = [1.0, 10.0, 100.0, 1e3, 1e4, 20.0].map(percentile_of).to_vec();
        assert_eq!(named, ["0%", "90%", "99%", "99.9%", "99.99%", ""]);
        assert!((one_in(99.9) - 1000.0).abs() < 1e-6);
        assert_eq!([17.0, 1e3, 1e7].map(latency), ["17 us", "1 ms", "10 s"]);
    }

    /// Lost if it fails: a plot in which a run is missing, or one that no browser opens.
    #[test]
    fn each_run_is_a_line_with_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let (a, b, out) = (dir.path().join("a.json"), dir.path().join("b.json"), dir.path().join("out.svg"));
        std::fs::write(&a, r#"{"distribution":[[0.0,100.0],[50.0,210.5],[99.9,1900.0],[100.0,2000.0]]}"#).expect("a");
        std::fs::write(&b, r#"{"distribution":[[0.0,400.0],[90.0,800.0]]}"#).expect("b");
        files(&out, &[a.clone(), b], &["first <1>".to_owned()]).expect("drawn");
        let svg = std::fs::read_to_string(&out).expect("written");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("first &lt;1&gt;") && svg.contains("\nb\n"), "{svg}");
        assert!(
            ["\n50%\n", "\n99%\n", "99.9%", "latency by percentile"].iter().all(|text| svg.contains(text)),
            "{svg}"
        );
        let titled = |title: &str| Run { label: String::new(), title: title.to_owned(), distribution: Vec::new() };
        let (common, own) = titles(&[titled("open, 5 requests/s; 1 flush"), titled("open, 5 requests/s; 2 flushes")]);
        assert_eq!((common.as_str(), own), ("open, 5 requests/s", vec!["1 flush".to_owned(), "2 flushes".to_owned()]));
        assert_eq!(titles(&[titled("a; b")]), ("a; b".to_owned(), vec![String::new()]));
        assert_eq!(titles(&[titled(""), titled("a")]), (String::new(), vec![String::new(), "a".to_owned()]));
        for (wrong, inputs) in [(&a, vec![out.clone()]), (&out, vec![a.clone(), out.clone()])] {
            assert_eq!(files(wrong, &inputs, &[]).expect_err("a result is not overwritten").code, "CAM-0607");
        }
        let result = dir.path().join("result.svg");
        std::fs::write(&result, "{}").expect("written");
        assert_eq!(files(&result, std::slice::from_ref(&a), &[]).expect_err("no SVG").code, "CAM-0607");
        std::fs::write(&a, "{}").expect("a");
        assert_eq!(files(&out, &[a], &[]).expect_err("no distribution").code, "CAM-0607");
        assert_eq!(files(&out, &[dir.path().join("c")], &[]).expect_err("no file").code, "CAM-0607");
    }
}
