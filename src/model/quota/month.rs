//! How long cards were held in a calendar month.

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};

/// A calendar month: from its first moment until before that of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Month {
    /// Its first moment.
    pub begin: Timestamp,
    /// The first moment of the next.
    pub end: Timestamp,
}

impl Month {
    /// The month of a moment in a zone.
    pub fn of(now: Timestamp, zone: &TimeZone) -> Self {
        let midnight = |day: Date| zone.to_timestamp(day.to_datetime(Time::midnight()));
        let begin = zone.to_datetime(now).date().first_of_month();
        let end = begin.checked_add(1.month()).and_then(midnight);
        // No calendar goes on beyond: the month goes as far as time does.
        Self { begin: midnight(begin).unwrap_or(Timestamp::MIN), end: end.unwrap_or(Timestamp::MAX) }
    }
}

/// A time in which a part of a card was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldTime {
    /// How much of the card, in millionths.
    pub share_ppm: u32,
    /// From when.
    pub began_at: Timestamp,
    /// Until when; `None` while it is held.
    pub ended_at: Option<Timestamp>,
}

/// Seconds of a whole card that were held in a month, up to now. What the clock makes negative counts nothing.
pub fn card_seconds(held: &[HeldTime], month: Month, now: Timestamp) -> u64 {
    let of_one = |time: &HeldTime| {
        let begin = time.began_at.max(month.begin).as_microsecond();
        let end = time.ended_at.unwrap_or(now).min(month.end).as_microsecond();
        let micros = u128::try_from(i128::from(end) - i128::from(begin)).unwrap_or_default();
        micros * u128::from(time.share_ppm)
    };
    let sum: u128 = held.iter().map(of_one).sum();
    u64::try_from(sum / 1_000_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn held(share_ppm: u32, from: &str, to: Option<&str>) -> HeldTime {
        HeldTime { share_ppm, began_at: at(from), ended_at: to.map(at) }
    }

    const WHOLE: u32 = 1_000_000;

    #[test]
    fn months_begin_where_the_calendar_says() {
        let month = |now: &str, zone: &TimeZone| {
            let month = Month::of(at(now), zone);
            (month.begin.to_string(), month.end.to_string())
        };
        let utc = |now: &str| month(now, &TimeZone::UTC);
        let pair = |begin: &str, end: &str| (begin.to_owned(), end.to_owned());
        assert_eq!(utc("2028-02-29T12:00:00Z"), pair("2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"));
        assert_eq!(utc("2026-12-31T23:59:59.999999Z"), pair("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"));
        assert_eq!(utc("2027-01-01T00:00:00Z"), pair("2027-01-01T00:00:00Z", "2027-02-01T00:00:00Z"));
        // Two hours ahead: the month begins there earlier.
        let ahead = TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(month("2026-11-30T22:00:00Z", &ahead), pair("2026-11-30T22:00:00Z", "2026-12-31T22:00:00Z"));
        assert_eq!(Month::of(Timestamp::MAX, &TimeZone::UTC).end, Timestamp::MAX);
    }

    #[test]
    fn a_part_of_a_card_counts_as_that_part_of_the_time() {
        let month = Month::of(at("2026-12-10T00:00:00Z"), &TimeZone::UTC);
        let now = at("2026-12-10T00:00:00Z");
        let quarter = held(250_000, "2026-12-01T00:00:00Z", Some("2026-12-01T10:00:00Z"));
        assert_eq!(card_seconds(&[quarter], month, now), 9_000, "2.5 hours");
        let three_of_seven = held(428_571, "2026-12-01T00:00:00Z", Some("2026-12-01T07:00:00Z"));
        assert_eq!(card_seconds(&[three_of_seven], month, now), 10_799, "3 hours, rounded down");
        let open = held(WHOLE, "2026-12-09T23:00:00Z", None);
        assert_eq!(card_seconds(&[quarter, open], month, now), 12_600);
    }

    #[test]
    fn time_outside_of_the_month_and_time_that_runs_backwards_count_nothing() {
        let month = Month::of(at("2028-02-29T00:00:00Z"), &TimeZone::UTC);
        let all = held(WHOLE, "2027-01-01T00:00:00Z", Some("2029-01-01T00:00:00Z"));
        let later = at("2030-01-01T00:00:00Z");
        assert_eq!(card_seconds(&[all], month, later), 29 * 86_400, "a leap year");
        let edges = [
            held(WHOLE, "2028-01-31T23:00:00Z", Some("2028-02-01T00:00:00Z")),
            held(WHOLE, "2028-03-01T00:00:00Z", Some("2028-03-01T01:00:00Z")),
            held(WHOLE, "2028-02-10T00:00:00Z", Some("2028-02-09T00:00:00Z")),
            held(WHOLE, "2028-03-01T00:00:00Z", None),
        ];
        assert_eq!(card_seconds(&edges, month, later), 0);
        // The clock was set back behind the beginning of what is held still.
        let open = held(WHOLE, "2028-02-10T00:00:00Z", None);
        assert_eq!(card_seconds(&[open], month, at("2028-02-01T00:00:00Z")), 0);
    }

    /// Case F-dst-and-usage: instants are kept, and only the edges of months are local.
    #[test]
    fn a_month_with_a_clock_change_has_an_hour_more_or_less() {
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let always = held(WHOLE, "2026-01-01T00:00:00Z", None);
        let now = at("2027-01-01T00:00:00Z");
        for (day, hours) in
            [("2026-03-15T00:00:00Z", 743), ("2026-10-15T00:00:00Z", 745), ("2026-07-15T00:00:00Z", 744)]
        {
            assert_eq!(card_seconds(&[always], Month::of(at(day), &berlin), now), hours * 3600, "{day}");
        }
        for (from, to) in
            [("2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"), ("2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z")]
        {
            let time = held(WHOLE, from, Some(to));
            assert_eq!(card_seconds(&[time], Month::of(time.began_at, &berlin), now), 3600, "{from}");
        }
    }

    proptest! {
        /// Two months beside each other count what both together do, and nothing counts more than a card is there.
        #[test]
        fn months_add_up(begins in prop::collection::vec((0..5_000_000i64, 0..5_000_000i64, 1..=WHOLE), 0..8)) {
            let base = at("2026-01-15T00:00:00Z").as_second();
            let second = |at: i64| Timestamp::from_second(base + at).unwrap();
            let times: Vec<HeldTime> = begins.iter().map(|(from, long, share_ppm)| HeldTime {
                share_ppm: *share_ppm, began_at: second(*from), ended_at: Some(second(from + long)),
            }).collect();
            let now = second(20_000_000);
            let mut month = Month::of(second(0), &TimeZone::UTC);
            let all = Month { begin: Timestamp::MIN, end: Timestamp::MAX };
            let mut sum = 0;
            for _ in 0..6 {
                let part = card_seconds(&times, month, now);
                let length = u64::try_from(month.end.as_second() - month.begin.as_second()).unwrap();
                prop_assert!(part <= length * times.len() as u64);
                sum += part;
                month = Month::of(month.end, &TimeZone::UTC);
            }
            let whole = card_seconds(&times, all, now);
            prop_assert!(sum <= whole && whole - sum <= 6, "{} of {}", sum, whole);
        }
    }
}
