#include "ems_context/save_policy.h"

#include "common/bytes.h"

namespace ems::context {

bool ShouldSave(SavePolicy policy, SavePhase phase) {
  switch (phase) {
    case SavePhase::kPrefill:
      return true;
    case SavePhase::kDecode:
      return policy == SavePolicy::kAll;
    case SavePhase::kFinal:
      return policy != SavePolicy::kPrefillOnly;
  }
  return false;
}

std::string_view NameOf(SavePolicy policy) {
  switch (policy) {
    case SavePolicy::kPrefillOnly:
      return "prefill_only";
    case SavePolicy::kAll:
      return "all";
    case SavePolicy::kFinalResponse:
      return "final_response";
  }
  return "?";
}

Result<SavePolicy> ParseSavePolicy(std::string_view name) {
  for (const SavePolicy policy :
       {SavePolicy::kPrefillOnly, SavePolicy::kAll, SavePolicy::kFinalResponse}) {
    if (NameOf(policy) == name) return policy;
  }
  return Error(StatusCode::kInvalidArgument,
               "\"{}\" is not a save policy: prefill_only, all and final_response are",
               Printable(name));
}

}  // namespace ems::context
