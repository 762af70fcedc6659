#pragma once
// The policy that decides which of an engine's new KV blocks are saved to the pool.
#include <cstdint>
#include <string_view>

#include "common/status.h"

namespace ems::context {

enum class SavePolicy : uint8_t {
  kPrefillOnly,  // prompts. The next turn of a reasoning model's dialogue drops what it thought, so
                 // what it decoded is of no more use
  kAll,          // decoded tokens too, block by block as they fill
  kFinalResponse,  // prompts, and of what was decoded the final response, once it is complete
};

// The origin of a block's tokens.
enum class SavePhase : uint8_t { kPrefill, kDecode, kFinal };

//                 kPrefill  kDecode  kFinal
// kPrefillOnly    yes       no       no
// kAll            yes       yes      yes
// kFinalResponse  yes       no       yes
bool ShouldSave(SavePolicy policy, SavePhase phase);

std::string_view NameOf(SavePolicy policy);  // "prefill_only", "all", "final_response"
Result<SavePolicy> ParseSavePolicy(std::string_view name);  // Errors: kInvalidArgument

}  // namespace ems::context
