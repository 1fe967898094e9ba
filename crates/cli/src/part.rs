//! The option `--part`: a part of a job, by number or from the array of a scheduler.

use dipaco_shards::WorkPart;

/// Variables of a Slurm job array: the task's index, the lowest and the highest index, and the number of tasks.
const SLURM: [&str; 4] =
    ["SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_COUNT"];
/// Variables of an indexed job of Kubernetes: the pod's index from 0, and the number of completions. Kubernetes sets the
/// first; the job's manifest sets the second.
const KUBERNETES: [&str; 2] = ["JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"];

/// Reads `I/N`, or `auto` for the part that the scheduler's environment names.
pub(crate) fn parse(text: &str) -> Result<WorkPart, String> {
    if text == "auto" {
        return from_environment(|name| std::env::var(name).ok());
    }
    text.parse::<WorkPart>().map_err(|error| error.to_string())
}

fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<WorkPart, String> {
    let number = |name: &str| {
        let text = variable(name).ok_or_else(|| format!("{name} is not set"))?;
        text.trim().parse::<u32>().map_err(|_| format!("{name} is {text:?} and not a number"))
    };
    if variable(SLURM[0]).is_some() {
        let [id, lowest, highest, count] = SLURM.map(number);
        let (id, lowest, highest, count) = (id?, lowest?, highest?, count?);
        // An array of some parts only would divide the job anew and leave the other parts out.
        if lowest > 1 || highest.checked_sub(lowest) != count.checked_sub(1) {
            return Err(format!(
                "the array has {count} tasks from {lowest} to {highest}: submit --array=0-N or 1-N without gaps, or repeat \
                 single parts with --part I/N"
            ));
        }
        return part(u64::from(id) + 1 - u64::from(lowest), count);
    }
    if variable(KUBERNETES[0]).is_some() {
        let [index, count] = KUBERNETES.map(number);
        return part(u64::from(index?) + 1, count?);
    }
    Err(format!("`auto` needs a scheduler: neither {} nor {} is set; give I/N", SLURM[0], KUBERNETES[0]))
}

fn part(index: u64, count: u32) -> Result<WorkPart, String> {
    let wrong = |_| format!("the scheduler names part {index} of {count}");
    WorkPart::new(u32::try_from(index).unwrap_or(u32::MAX), count).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auto(variables: &[(&str, &str)]) -> Result<String, String> {
        let find =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        from_environment(find).map(|part| part.to_string())
    }

    fn slurm(id: &str, lowest: &str, highest: &str, count: &str) -> Result<String, String> {
        let variables: Vec<_> = SLURM.into_iter().zip([id, lowest, highest, count]).collect();
        auto(&variables)
    }

    #[test]
    fn arrays_that_begin_at_0_or_1_name_all_parts() {
        assert_eq!(slurm("0", "0", "3", "4").unwrap(), "1/4");
        assert_eq!(slurm("3", "0", "3", "4").unwrap(), "4/4");
        assert_eq!(slurm("4", "1", "4", "4").unwrap(), "4/4");
        assert_eq!(auto(&[("JOB_COMPLETION_INDEX", "2"), ("JOB_COMPLETIONS", "8")]).unwrap(), "3/8");
    }

    #[test]
    fn an_array_of_some_parts_is_refused() {
        for (id, lowest, highest, count) in
            [("3", "3", "3", "1"), ("3", "3", "5", "3"), ("2", "0", "6", "3"), ("5", "0", "3", "4")]
        {
            assert!(slurm(id, lowest, highest, count).is_err(), "{id} of {lowest} to {highest}");
        }
        assert!(slurm("x", "0", "3", "4").unwrap_err().contains("not a number"));
        assert!(auto(&[]).unwrap_err().contains("needs a scheduler"));
        assert!(auto(&[("JOB_COMPLETION_INDEX", "2")]).unwrap_err().contains("JOB_COMPLETIONS is not set"));
    }

    #[test]
    fn a_part_by_number_needs_no_scheduler() {
        assert_eq!(parse("2/8").unwrap().to_string(), "2/8");
        assert!(parse("9/8").is_err());
    }
}
