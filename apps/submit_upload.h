// Uploads a job's local data.
#pragma once

#include "local_data.h"

#include "shoal/sagemaker/job/job.h"
#include "shoal/sagemaker/rest/session.h"

namespace shoal::app {

// Uploads the files to their channels of the job. Files that are there already, with the same size
// and checksum, are not sent again, so a second call continues after a failure. Prints the progress
// once a second and a sum at the end; with `json`, {"event": "uploaded", ...} for each file.
void upload_data(const LocalData& data, const sagemaker::TrainingJob& job,
                 const sagemaker::Session& session, bool json);

}  // namespace shoal::app
