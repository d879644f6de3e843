//! A terminal's screen as an SVG picture, light or dark as the reader prefers.

use std::fmt::Write;

use vt100::{Cell, Color, Screen};

const CELL_WIDTH: f32 = 8.4;
const LINE_HEIGHT: f32 = 18.0;
const MARGIN: f32 = 14.0;

/// The sixteen colours of terminals, for light and for dark backgrounds.
const LIGHT: [&str; 16] = [
    "#24292f", "#b3261e", "#1a7f37", "#8a5a00", "#0b57d0", "#8250df", "#0f6e84", "#57606a",
    "#6e7781", "#cf222e", "#2da44e", "#9a6700", "#218bff", "#a475f9", "#1b7c83", "#24292f",
];
const DARK: [&str; 16] = [
    "#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4",
    "#6e7681", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#f0f6fc",
];

pub(super) fn draw(screen: &Screen) -> String {
    let (_, columns) = screen.size();
    let rows: Vec<String> = screen.rows(0, columns.get()).collect();
    let used = rows.iter().rposition(|row| !row.trim().is_empty());
    let used = used.map_or(1, |last| last + 1);
    let width = f32::from(columns.get()).mul_add(CELL_WIDTH, 2.0 * MARGIN);
    let height = f32::from(u16::try_from(used).unwrap_or(u16::MAX)) * LINE_HEIGHT + 2.0 * MARGIN;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\">\n<style>\n{}</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\" rx=\"8\"/>\n",
        style()
    );
    for row in 0..u16::try_from(used).unwrap_or(u16::MAX) {
        let y = (f32::from(row) + 0.75).mul_add(LINE_HEIGHT, MARGIN);
        draw_row(screen, row, columns.get(), y, &mut picture);
    }
    picture.push_str("</svg>\n");
    picture
}

fn style() -> String {
    let colours = |palette: [&str; 16]| {
        let rules = palette.iter().enumerate();
        rules.fold(String::new(), |mut rules, (number, colour)| {
            let _ = write!(rules, " .c{number} {{ fill: {colour} }}");
            rules
        })
    };
    format!(
        "text {{ font: 14px ui-monospace, \"DejaVu Sans Mono\", Menlo, Consolas, monospace; \
         white-space: pre; fill: #24292f }}\n\
         .paper {{ fill: #f6f8fa }} .b {{ font-weight: bold }} .d {{ opacity: 0.6 }} .i {{ font-style: italic }}\n\
         .u {{ text-decoration: underline }}\n{}\n\
         @media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .paper {{ fill: #0d1117 }}{} }}\n",
        colours(LIGHT),
        colours(DARK)
    )
}

/// Draws one row: a `text` element for each run of cells that look the same.
fn draw_row(screen: &Screen, row: u16, columns: u16, y: f32, picture: &mut String) {
    let mut column = 0;
    while column < columns {
        let start = column;
        let Some(first) = screen.cell(row, column) else {
            return;
        };
        let look = look(first);
        let mut text = String::new();
        while let Some(cell) = screen.cell(row, column).filter(|_| column < columns) {
            if self::look(cell) != look {
                break;
            }
            if !cell.is_wide_continuation() {
                text.push_str(if cell.has_contents() {
                    cell.contents()
                } else {
                    " "
                });
            }
            column += 1;
        }
        let visible = text.trim_end();
        if visible.is_empty() {
            continue;
        }
        let cells = f32::from(column - start);
        let share = visible.chars().count() as f32 / text.chars().count() as f32;
        let x = f32::from(start).mul_add(CELL_WIDTH, MARGIN);
        let length = cells * share * CELL_WIDTH;
        let _ = writeln!(
            picture,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\" class=\"{look}\">{}</text>",
            escaped(visible)
        );
    }
}

/// The classes of a cell.
fn look(cell: &Cell) -> String {
    let mut classes = Vec::new();
    if let Color::Idx(number @ 0..16) = cell.fgcolor() {
        classes.push(format!("c{number}"));
    }
    for (applies, class) in [
        (cell.bold(), "b"),
        (cell.dim(), "d"),
        (cell.italic(), "i"),
        (cell.underline(), "u"),
    ] {
        if applies {
            classes.push(class.to_owned());
        }
    }
    classes.join(" ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use vt100::Parser;

    use super::draw;

    #[test]
    fn a_picture_has_the_text_and_the_colours_of_the_screen() {
        let size = |number| NonZeroU16::new(number).unwrap();
        let mut parser = Parser::new(size(3), size(20), 0);
        parser.process(b"plain \x1b[31mred <&>\x1b[0m\r\n\x1b[1mbold\x1b[0m");
        let picture = draw(parser.screen());
        assert!(picture.contains("class=\"\">plain</text>"), "{picture}");
        assert!(picture.contains("class=\"c1\">red &lt;&amp;&gt;</text>"));
        assert!(picture.contains("class=\"b\">bold</text>"));
        // Two rows are used.
        assert!(picture.contains("height=\"64\""), "{picture}");
    }
}
