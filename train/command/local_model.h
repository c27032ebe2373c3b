// Finds a model or tokenizer on this machine by its remote name.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace shoal::command {

// The directory of a model or tokenizer: the path itself; SageMaker's channel of that name
// (SM_CHANNEL_NAME, /opt/ml/input/data/NAME); or its entry in Hugging Face's cache. If there is
// none, returns the name unchanged, and its reader reports the error. s3:// throws unavailable.
std::string local_model(const std::string& name);
// "there is no such directory, no channel ...": the places that local_model() searched.
std::string not_found_anywhere(const std::string& name);
// What to do then: the `hf download` line if `name` can be one of the Hub's.
std::string how_to_get(const std::string& name);

// True if the Hub may have a model of this name: ORG/NAME or NAME.
bool is_hub_name(const std::string& name);
// The folder of the model in Hugging Face's cache, models--ORG--NAME, whether it is there or not.
std::string hub_folder(const std::string& name);
// Downloads a model of the Hub into hub_folder() and returns its directory there. Several ranks of
// a host may call it at once; one of them downloads.
using FetchModel = std::function<std::string(const std::string& name)>;

// The directory of one of the job's input channels in SageMaker.
std::optional<std::string> sagemaker_channel(const std::string& name);
// The directory of Hugging Face's cache, as in huggingface_hub's constants.py: the first that is
// set of HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub and
// ~/.cache/huggingface/hub. Expands ~ and variables.
std::string hub_cache();

// Throws unavailable if `name`, the value of `option`, is in S3.
void refuse_remote(const std::string& option, const std::string& name);
std::string last_part_of(const std::string& name);  // "name" for "org/name"

}  // namespace shoal::command
