#![allow(clippy::unwrap_used)]
use super::*;

fn lines() -> LineChart {
    LineChart {
        title: "Loss & more".into(),
        x: Axis::linear("inner steps"),
        y: Axis::linear("loss in nats per token"),
        lines: vec![
            Line { marked: true, ..Line::new("a < b", vec![(0.0, 7.0), (50.0, f64::NAN), (100.0, 4.0)]) },
            Line {
                band: vec![(5.0, 7.0), (4.0, 6.0)],
                ..Line::new("dense", vec![(0.0, 6.0), (100.0, 5.0)]).in_colour(1)
            },
        ],
    }
}

fn all() -> Vec<(&'static str, String)> {
    let heat = HeatMap {
        title: "Documents by domain and path".into(),
        x: "path".into(),
        y: "domain".into(),
        value: "share".into(),
        columns: (0..16).map(|path| path.to_string()).collect(),
        rows: (0..4)
            .map(|row| (format!("domain {row}"), (0..16).map(|c| f64::from(c * row)).collect()))
            .collect(),
        range: None,
    };
    let bars = BarChart {
        title: "Shards".into(),
        x: "path".into(),
        y: "documents".into(),
        bars: (0..300).map(|path| (path.to_string(), f64::from(path))).collect(),
    };
    let dots = DotChart {
        title: "Perplexity".into(),
        x: Axis::linear("perplexity"),
        rows: vec![
            DotRow {
                label: "dense".into(),
                marks: vec![DotMark { values: vec![40.0, 41.0, 42.5], colour: 0 }],
            },
            DotRow {
                label: "a name that is much too long to fit ".repeat(8),
                marks: vec![DotMark { values: vec![f64::NAN], colour: 1 }],
            },
        ],
        names: vec![],
    };
    vec![("lines", lines().svg()), ("bars", bars.svg()), ("heat", heat.svg()), ("dots", dots.svg())]
}

#[test]
fn every_chart_is_rendered_and_its_text_is_visible() {
    for (name, svg) in all() {
        let picture = png(&svg, 1.0).unwrap();
        assert_eq!(&picture[..8], b"\x89PNG\r\n\x1a\n", "{name}");
        // Without its text the picture differs, so the built-in font was found.
        let mut bare = String::new();
        for line in svg.lines().filter(|line| !line.starts_with("<text")) {
            bare += line;
        }
        assert_ne!(picture, png(&bare, 1.0).unwrap(), "{name}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}: {svg}");
    }
}

#[test]
fn the_same_numbers_give_the_same_bytes() {
    assert_eq!(png(&lines().svg(), 2.0).unwrap(), png(&lines().svg(), 2.0).unwrap());
}

#[test]
fn names_are_escaped() {
    let svg = lines().svg();
    assert!(svg.contains("a &lt; b") && svg.contains("Loss &amp; more"), "{svg}");
}

#[test]
fn a_value_that_is_not_finite_leaves_a_gap() {
    let svg = lines().svg();
    let drawn = svg.lines().filter(|line| line.starts_with("<polyline") && line.contains("#0072b2"));
    // Two parts of one point each, and the swatch in the legend.
    assert_eq!(drawn.count(), 3, "{svg}");
}

#[test]
fn a_row_of_several_kinds_has_a_mark_in_the_colour_of_each_and_the_legend_names_them() {
    let mark = |values: &[f64], colour| DotMark { values: values.to_vec(), colour };
    let row = |marks| DotRow { label: "law".into(), marks };
    let chart = |row, names: &[&str]| DotChart {
        rows: vec![row],
        names: names.iter().map(|&name| name.to_owned()).collect(),
        ..DotChart::default()
    };
    let one = chart(row(vec![mark(&[12.25], 1)]), &[]).svg();
    assert!(one.contains(">12.25<"), "{one}");
    let both = chart(row(vec![mark(&[12.25], 1), mark(&[-1.0, 2.0], 0)]), &["dense", "2 × 2"]).svg();
    assert!(!both.contains(">12.25<") && both.contains(">dense<") && both.contains(">2 × 2<"), "{both}");
    let dots =
        |colour| both.lines().filter(|line| line.starts_with("<circle") && line.contains(colour)).count();
    // A dot of each mean, a circle of each of two seeds, and the swatches of the legend.
    assert_eq!((dots("#0072b2"), dots("#d55e00")), (4, 2), "{both}");
}

#[test]
fn charts_without_values_are_drawn_too() {
    for svg in [
        LineChart::default().svg(),
        BarChart::default().svg(),
        HeatMap::default().svg(),
        DotChart::default().svg(),
    ] {
        assert!(png(&svg, 1.0).is_ok(), "{svg}");
    }
}

#[test]
fn ticks_are_round_numbers_that_can_be_told_apart() {
    let ticks = |axis: Axis, values: [f64; 2]| {
        let ticks = axis.over(values.into_iter(), 400.0).ticks(80.0);
        ticks.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ticks(Axis::linear(""), [0.0, 600.0]), "0 200 400 600");
    assert_eq!(ticks(Axis::linear(""), [4.21, 4.29]), "4.22 4.24 4.26 4.28");
    assert_eq!(ticks(Axis::linear(""), [0.0, 20e6]), "0 5M 10M 15M 20M");
    assert_eq!(ticks(Axis::linear(""), [-1.0, 1.0]), "\u{2212}1.0 \u{2212}0.5 0.0 0.5 1.0");
    assert_eq!(ticks(Axis::logarithmic(""), [1.0, 1e6]), "1 10 100 1000 10k 100k 1M");
    assert_eq!(ticks(Axis::logarithmic(""), [1.2e5, 2.6e6]), "200k 500k 1M 2M");
    assert_eq!(ticks(Axis::linear("").with_ticks(vec![4.0, 16.0, 64.0]), [4.0, 64.0]), "4 16 64");
}

#[test]
fn other_text_and_empty_pictures_are_refused() {
    assert!(matches!(png("no", 1.0), Err(PlotError::Svg { .. })));
    assert!(matches!(png(&lines().svg(), f32::NAN), Err(PlotError::Size { .. })));
}

#[test]
fn a_very_long_picture_is_drawn_smaller() {
    let long = r#"<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20000"/>"#;
    let bytes = png(long, 2.0).unwrap();
    // Width and height in the first chunk of a PNG.
    let number = |at: usize| u32::from_be_bytes(*bytes[at..].first_chunk().unwrap());
    assert_eq!((number(16), number(20)), (17, 16_384));
}
