//! Formats schedules: the time of the next run in words, and the results of runs.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};
use serde_json::{Map, Value, json};

/// The fields to display of the result of an operation on schedules.
pub(super) fn for_display(operation: &str, result: &Map<String, Value>) -> Map<String, Value> {
    let now = Timestamp::now();
    let rows = |name: &str, view: &dyn Fn(&Value) -> Value| {
        let rows = result.get(name).and_then(Value::as_array);
        let rows: Vec<Value> = rows.into_iter().flatten().map(view).collect();
        Map::from_iter([(name.to_owned(), Value::Array(rows))])
    };
    match operation {
        "schedule_list" => rows("schedules", &|schedule| list_row(schedule, now)),
        "schedule_history" | "schedule_trigger" => rows("runs", &run_row),
        "schedule_create" | "schedule_get" | "schedule_update" => details(result, now),
        _ => result.clone(),
    }
}

fn list_row(schedule: &Value, now: Timestamp) -> Value {
    let targets = schedule["targets"].as_array().map_or(0, Vec::len);
    json!({
        "name": schedule["name"],
        "next_run": next_run(schedule, now),
        "cron_expr": schedule["cron_expr"],
        "target_count": targets,
        "schedule_id": schedule["schedule_id"],
    })
}

fn details(schedule: &Map<String, Value>, now: Timestamp) -> Map<String, Value> {
    let mut shown = schedule.clone();
    let whole = Value::Object(schedule.clone());
    shown.insert("next_run".to_owned(), json!(next_run(&whole, now)));
    let zone = zone(&whole);
    let next = whole["next_runs"].as_array().into_iter().flatten();
    let next = next.filter_map(|at| at.as_str()?.parse::<Timestamp>().ok());
    let next: Vec<String> = next
        .map(|at| {
            at.to_zoned(zone.clone())
                .strftime("%a %F %H:%M:%S")
                .to_string()
        })
        .collect();
    shown.insert("next_runs".to_owned(), json!(next));
    shown
}

fn run_row(run: &Value) -> Value {
    let result = [&run["error"], &run["note"], &run["output"]];
    let result = result
        .into_iter()
        .find_map(Value::as_str)
        .unwrap_or_default();
    let duration_ms = run["duration_ms"].as_f64();
    json!({
        "due_at": run["due_at"],
        "status": run["status"],
        "took": duration_ms.map(|duration_ms| format!("{:.1}s", duration_ms / 1000.0)),
        "cost_usd": run["cost_usd"],
        "result": result,
        "session_id": run["session_id"],
    })
}

fn zone(schedule: &Value) -> TimeZone {
    let name = schedule["timezone"].as_str().unwrap_or("UTC");
    TimeZone::get(name).unwrap_or(TimeZone::UTC)
}

fn next_run(schedule: &Value, now: Timestamp) -> String {
    let next = schedule["next_run"].as_str();
    match next.and_then(|at| at.parse::<Timestamp>().ok()) {
        Some(at) => describe_time(&at.to_zoned(zone(schedule)), now),
        None => match schedule["disabled_reason"].as_str() {
            Some(reason) => format!("disabled: {reason}"),
            None => "disabled".to_owned(),
        },
    }
}

/// `in 3 hours, Mon 09:00 Europe/Berlin`.
fn describe_time(at: &Zoned, now: Timestamp) -> String {
    let left = at.timestamp().duration_since(now);
    let day = match left {
        left if left < SignedDuration::from_hours(6 * 24) => "%a %H:%M",
        left if left < SignedDuration::from_hours(300 * 24) => "%a %-d %b %H:%M",
        _ => "%a %-d %b %Y %H:%M",
    };
    let zone = at.time_zone().iana_name().unwrap_or("UTC");
    format!("{}, {} {zone}", distance(left), at.strftime(day))
}

fn distance(left: SignedDuration) -> String {
    const UNITS: [(&str, f64, f64); 4] = [
        ("second", 1.0, 90.0),
        ("minute", 60.0, 90.0 * 60.0),
        ("hour", 3600.0, 36.0 * 3600.0),
        ("day", 86_400.0, f64::INFINITY),
    ];
    let seconds = left.as_secs_f64();
    if seconds < 1.0 {
        return "now".to_owned();
    }
    let unit = UNITS.iter().find(|(_, _, end)| seconds < *end);
    let (name, length, _) = unit.unwrap_or(&UNITS[3]);
    let count = (seconds / length).round();
    let plural = if count == 1.0 { "" } else { "s" };
    format!("in {count} {name}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_run_is_shown_in_words() {
        let now: Timestamp = "2027-01-04T05:00:00Z".parse().unwrap();
        for (at, expected) in [
            (
                "2027-01-04T08:00:00Z",
                "in 3 hours, Mon 09:00 Europe/Berlin",
            ),
            (
                "2027-01-04T05:00:30Z",
                "in 30 seconds, Mon 06:00 Europe/Berlin",
            ),
            (
                "2027-01-04T05:10:00Z",
                "in 10 minutes, Mon 06:10 Europe/Berlin",
            ),
            (
                "2027-01-04T06:29:59Z",
                "in 90 minutes, Mon 07:29 Europe/Berlin",
            ),
            ("2027-01-06T05:00:00Z", "in 2 days, Wed 06:00 Europe/Berlin"),
            (
                "2027-07-01T05:00:00Z",
                "in 178 days, Thu 1 Jul 07:00 Europe/Berlin",
            ),
            (
                "2028-02-29T05:00:00Z",
                "in 421 days, Tue 29 Feb 2028 06:00 Europe/Berlin",
            ),
            ("2027-01-04T04:59:00Z", "now, Mon 05:59 Europe/Berlin"),
        ] {
            let schedule = json!({ "next_run": at, "timezone": "Europe/Berlin" });
            assert_eq!(next_run(&schedule, now), expected);
        }
        assert_eq!(next_run(&json!({ "enabled": false }), now), "disabled");
        let failed = json!({ "disabled_reason": "it failed" });
        assert_eq!(next_run(&failed, now), "disabled: it failed");
    }
}
