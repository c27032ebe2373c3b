// Carries out the runs of a study by commands: on this host, or on others by a launcher.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "study.h"

#include "shoal/train/report/run_log.h"

namespace shoal::app {

// The words of the run's command, after its variables: {"SHOAL_THREADS=1", "mpirun", "-n", "2",
// ..., "shoal", "train", "run.json", ...}. `shoal`: this program's path. `output`: the study's
// directory; `directory`: the run's.
std::vector<std::string> command_of(const StudyOptions& options, const StudyCell& cell,
                                    const std::string& shoal, const std::string& output,
                                    const std::string& directory);

// Reports errors that all runs would meet: options, models, files. Starts no rank.
void check_commands(const StudyOptions& options);
// Throws unavailable if the Python that the study names cannot run its script. Blocks for seconds.
void check_python(const StudyOptions& options);

// Runs the command to its end. What it writes is in DIRECTORY.stdout.txt and .stderr.txt. Returns
// nullopt if a signal stopped this process (command::stop_signal). Throws if the run failed, with
// its own reason.
std::optional<StudyResult> run_command(const StudyOptions& options, const StudyCell& cell,
                                       std::vector<std::string> command,
                                       const std::string& directory);

// Throughput and losses of a finished run. Throughput is steady, from the sixth part of the steps
// to the last; if the study has a backend that logs no times, it is that of the whole training.
// Throws corrupt_data if the run trained other examples than the study's, as ranks do that have not
// found each other.
StudyResult measured(const StudyOptions& options, const StudyCell& cell, const report::RunLog& run);

}  // namespace shoal::app
