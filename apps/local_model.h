// Where a model or a tokenizer is on this machine, from the name that it has elsewhere.
#pragma once

#include <optional>
#include <string>

namespace shoal::app {

// A directory for the name of a model or tokenizer: the path itself; SageMaker's channel of that
// name (SM_CHANNEL_NAME, /opt/ml/input/data/NAME); or what Hugging Face's cache has under it. The
// name as it is where there is none: what reads it says so. s3://: unavailable.
std::string local_model(const std::string& name);
// "there is no such directory, no channel ...": where local_model() looked, for the error.
std::string not_found_anywhere(const std::string& name);

// SageMaker puts each input channel of a job into a directory.
std::optional<std::string> sagemaker_channel(const std::string& name);
// As huggingface_hub's constants.py has it: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub, the first that is set; ~ and
// variables in it expanded.
std::string hub_cache();

// unavailable where `name` of `option` is in S3.
void refuse_remote(const std::string& option, const std::string& name);
std::string last_part_of(const std::string& name);  // "org/name": "name"

}  // namespace shoal::app
