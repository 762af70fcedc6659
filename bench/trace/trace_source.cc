#include "bench/trace/trace_source.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "bench/trace/trace_maker.h"
#include "bench/trace/trace_reader.h"

namespace ems::bench {
namespace {

// Beside the source this was built from, or where a package puts it.
std::string DefaultTracePath() {
  const std::string in_source = EMS_TRACE_FILE;
  if (access(in_source.c_str(), R_OK) == 0) return in_source;
  std::error_code ignored;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (binary.parent_path().parent_path() / "share" / "ems" /
          std::filesystem::path(in_source).filename())
      .string();
}

}  // namespace

void AddTraceOptions(Command* command, TraceChoice* choice) {
  command->AddOption("--trace", &choice->path,
                     "A file of --format, plain or gzip; without it the conversation trace that "
                     "comes with EMS",
                     {.check = ExistingFile{}});
  command->AddOption("--format", &choice->format,
                     "Of the file: Mooncake's JSONL; vLLM's custom data sets; ShareGPT's "
                     "conversations; a CSV with a column input_length, and timestamp, "
                     "output_length, hash_ids",
                     {.check = OneOf{TraceFormatNames()}});
  command->AddOption("--make", &choice->shape,
                     "Make a trace in place of reading one: few documents get most requests, or "
                     "all are asked about in turn",
                     {.check = OneOf{TraceShapeNames()}});
  command->AddOption("--seed", &choice->seed, "Of a trace that is made");
  command->Exclude("--make", "--trace");
  command->Exclude("--make", "--format");
}

Result<Trace> TakeTrace(TraceChoice* choice) {
  if (choice->shape.empty()) {
    if (choice->path.empty()) choice->path = DefaultTracePath();
    return ReadTrace(choice->path, choice->requests, TraceFormatOf(choice->format));
  }
  const uint64_t requests = choice->requests == 0 ? kMadeRequests : choice->requests;
  if (requests > kMadeRequestsMax)
    return Error(StatusCode::kInvalidArgument, "--requests {}: {} at most are made", requests,
                 kMadeRequestsMax);
  choice->path = fmt::format("made, {}, seed {}", choice->shape, choice->seed);
  return MakeTrace(TraceShapeOf(choice->shape), requests, choice->seed);
}

}  // namespace ems::bench
