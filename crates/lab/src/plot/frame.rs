//! The frame around the data: axes with their titles, a light grid, and a legend above, where it
//! hides nothing.

use plotters::prelude::*;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::scale::Scale;
use super::{Area, Axis, PlotError, SMALL, TEXT, WIDTH, failed};

const LEFT: i32 = 78;
const RIGHT: i32 = 20;
const BELOW: i32 = 58;
/// Height of the data's own field.
const FIELD: i32 = 300;
/// Height of a row of the legend, and the width of a letter in it.
const ROW: i32 = 24;
const LETTER: i32 = 8;
const KEY: i32 = 34;
const GRID: RGBColor = RGBColor(0xe0, 0xe0, 0xe0);

/// The field in which data is drawn, in pixels.
pub(super) struct Frame {
    x: Scale,
    y: Scale,
    top: i32,
}

/// Draws the key of the legend's entry of that number, centred at a place.
pub(super) type DrawKey<'a> = &'a dyn Fn(&Area<'_>, usize, (i32, i32)) -> Result<(), PlotError>;

impl Frame {
    /// A frame whose legend has these names.
    pub(super) fn new(x: Scale, y: Scale, names: &[String]) -> Frame {
        Frame { x, y, top: 14 + ROW * rows(names).len() as i32 }
    }

    /// The height of the whole plot.
    pub(super) fn height(&self) -> u32 {
        (self.top + FIELD + BELOW) as u32
    }

    /// The place of a value.
    pub(super) fn at(&self, x: f64, y: f64) -> (i32, i32) {
        let width = WIDTH as i32 - LEFT - RIGHT;
        let along =
            |share: f64, length: i32| (share.clamp(-0.1, 1.1) * f64::from(length)).round() as i32;
        (LEFT + along(self.x.share(x), width), self.top + FIELD - along(self.y.share(y), FIELD))
    }

    /// Draws everything but the data.
    pub(super) fn draw(
        &self,
        area: &Area<'_>,
        (x, y): (&Axis, &Axis),
        names: &[String],
        key: DrawKey<'_>,
    ) -> Result<(), PlotError> {
        self.grid(area)?;
        let (bottom, right) = (self.top + FIELD, WIDTH as i32 - RIGHT);
        let axes = PathElement::new(
            vec![(LEFT, self.top), (LEFT, bottom), (right, bottom)],
            BLACK.stroke_width(1),
        );
        area.draw(&axes).map_err(failed)?;
        let centred =
            TEXT.into_font().into_text_style(area).pos(Pos::new(HPos::Center, VPos::Bottom));
        area.draw(&Text::new(x.title, ((LEFT + right) / 2, bottom + BELOW - 8), centred.clone()))
            .map_err(failed)?;
        let turned = TEXT.into_font().transform(FontTransform::Rotate270).into_text_style(area);
        let turned = turned.pos(Pos::new(HPos::Center, VPos::Top));
        area.draw(&Text::new(y.title, (8, self.top + FIELD / 2), turned)).map_err(failed)?;
        self.legend(area, names, key)
    }

    fn grid(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let (bottom, right) = (self.top + FIELD, WIDTH as i32 - RIGHT);
        let left_of =
            SMALL.into_font().into_text_style(area).pos(Pos::new(HPos::Right, VPos::Center));
        for tick in &self.y.ticks {
            let (_, y) = self.at(0.0, *tick);
            area.draw(&PathElement::new(vec![(LEFT, y), (right, y)], GRID.stroke_width(1)))
                .map_err(failed)?;
            area.draw(&Text::new(self.y.label(*tick), (LEFT - 7, y), left_of.clone()))
                .map_err(failed)?;
        }
        let below = SMALL.into_font().into_text_style(area).pos(Pos::new(HPos::Center, VPos::Top));
        for tick in &self.x.ticks {
            let (x, _) = self.at(*tick, 0.0);
            area.draw(&PathElement::new(vec![(x, bottom), (x, bottom + 5)], BLACK.stroke_width(1)))
                .map_err(failed)?;
            for (row, word) in (0..).zip(self.x.label(*tick).split('\n')) {
                let place = (x, bottom + 8 + 14 * row);
                area.draw(&Text::new(word.to_owned(), place, below.clone())).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn legend(&self, area: &Area<'_>, names: &[String], key: DrawKey<'_>) -> Result<(), PlotError> {
        let style = TEXT.into_font().into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
        for (row, entries) in (0..).zip(rows(names)) {
            for (entry, x) in entries {
                let y = 16 + ROW * row;
                key(area, entry, (x + KEY / 2, y))?;
                let name = names.get(entry).map_or("", String::as_str);
                area.draw(&Text::new(name, (x + KEY + 6, y), style.clone())).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// The legend's entries in rows: the number of each and where it begins. One alone needs no legend.
fn rows(names: &[String]) -> Vec<Vec<(usize, i32)>> {
    if names.len() < 2 {
        return Vec::new();
    }
    let mut rows = vec![Vec::new()];
    let mut x = LEFT;
    for (entry, name) in names.iter().enumerate() {
        let width = KEY + 22 + LETTER * name.chars().count() as i32;
        if x + width > WIDTH as i32 && x > LEFT {
            rows.push(Vec::new());
            x = LEFT;
        }
        if let Some(row) = rows.last_mut() {
            row.push((entry, x));
        }
        x += width;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_legend_has_rows() {
        let names = |count: usize| vec!["a name of some length".to_owned(); count];
        assert_eq!(rows(&names(1)).len(), 0);
        assert_eq!(rows(&names(2)).len(), 1);
        let many = rows(&names(7));
        assert!(many.len() > 2 && many.iter().flatten().count() == 7, "{many:?}");
    }
}
