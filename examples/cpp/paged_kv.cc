// Paged KV in C++, loaded layer by layer; docs/CPP_API.md quotes it.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ems_context/block_hash.h"
#include "ems_context/block_store.h"
#include "ems_context/context_cache.h"
#include "ems_context/paged_cache.h"
#include "mp_sdk/client.h"

constexpr uint32_t kLayers = 4, kPages = 64, kPageTokens = 16, kBlockTokens = 128;

// Stands for an engine: MLA latents in pages, a row of 576 bf16 a token.
struct Engine {
  Engine() : kv(kLayers, std::vector<uint16_t>(size_t{kPages} * kPageTokens * 576)) {}
  // Block i of the prompt is given the pages behind those of block i - 1.
  static uint64_t FirstSlotOf(size_t block) { return block * kBlockTokens; }
  uint16_t* Row(size_t layer, uint64_t slot) { return kv[layer].data() + slot * 576; }
  // Stands for prefill: the rows follow from the tokens alone.
  void Compute(size_t layer, std::span<const int32_t> tokens, size_t first_token) {
    for (size_t at = first_token; at < tokens.size(); ++at)
      for (size_t i = 0; i < 576; ++i)
        Row(layer, at)[i] = static_cast<uint16_t>(static_cast<size_t>(tokens[at]) * 7 + layer + i);
  }
  std::vector<std::vector<uint16_t>> kv;
};

ems::Status Serve(const std::string& controller_address, std::span<const int32_t> tokens,
                  Engine* engine) {
  ems::ClientOptions options;
  options.controller = controller_address;  // host:port
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<ems::Client> client, ems::Client::Connect(options));
  ems::context::ClientBlockStore store(client.get());
  ems::context::ContextCache cache(&store);

  std::vector<ems::context::KvLayer> layers(kLayers);
  for (size_t i = 0; i < kLayers; ++i) {
    ems::context::KvTensor latent;
    latent.data = reinterpret_cast<std::byte*>(engine->kv[i].data());
    latent.bytes = engine->kv[i].size() * 2;
    latent.dtype = ems::context::KvDtype::kBfloat16;
    latent.blocks = kPages;
    latent.block_tokens = kPageTokens;
    latent.heads = 1;
    latent.head_size = 512 + 64;
    layers[i].tensors = {latent};  // {K, V} for GQA
  }
  EMS_ASSIGN_OR_RETURN(ems::context::KvLayout layout,
                       ems::context::KvLayout::Make(std::move(layers)));
  ems::context::PagedOptions paged_options;
  paged_options.shared_by_tp = true;  // MLA: all ranks hold the same bytes
  paged_options.tp_rank = 0;
  paged_options.tp_size = 1;
  ems::context::PagedCache paged(&cache, &store, std::move(layout), paged_options);

  ems::context::KeyDomain domain;
  domain.model = "fingerprint of the weights";
  domain.dtype = "bf16";
  EMS_ASSIGN_OR_RETURN(const ems::context::BlockHasher hasher,
                       ems::context::BlockHasher::Make(
                           paged.DomainFor(domain), ems::context::HashKind::kSha256, kBlockTokens));

  const ems::context::LookupResult found = cache.Lookup(hasher, tokens);
  std::vector<ems::context::PagedBlock> blocks;  // of all full blocks of the prompt
  for (size_t i = 0; i < found.keys.size(); ++i) {
    blocks.push_back({found.keys[i], {{{engine->FirstSlotOf(i), kBlockTokens}}}});
  }
  std::vector<ems::context::PagedBlock> there(
      blocks.begin(), blocks.begin() + static_cast<ptrdiff_t>(found.leading_blocks));

  const ems::context::LayerLoad load = paged.LoadLayers(there);
  size_t have = there.size();  // blocks that need not be computed
  for (size_t layer = 0; layer < kLayers; ++layer) {
    const auto ready = load.WaitLayer(layer, ems::Deadline::After(std::chrono::milliseconds(500)));
    if (!ready.ok() || ready->leading_blocks < have) {  // too slow, or gone since the lookup
      load.Cancel();                                    // from here on nothing is written
      have = 0;
      break;
    }
    engine->Compute(layer, tokens, have * kBlockTokens);
  }
  if (have < there.size()) {  // once more, without the pool
    for (size_t layer = 0; layer < kLayers; ++layer) engine->Compute(layer, tokens, 0);
  }

  std::vector<ems::context::PagedBlock> fresh(blocks.begin() + static_cast<ptrdiff_t>(have),
                                              blocks.end());
  const ems::context::SaveCall save =
      paged.SaveAsync(std::move(fresh), ems::context::SavePhase::kPrefill);
  // go on with other work; before these pages are given to another request:
  const ems::context::SaveResult saved = save.Result();  // or save.Cancel()
  std::printf("%zu blocks loaded, %zu computed, %zu saved\n", have, blocks.size() - have,
              saved.stored_blocks);
  return ems::OkStatus();
}

int main(int argc, char** argv) {
  const std::string controller = argc > 1 ? argv[1] : "127.0.0.1:7400";
  std::vector<int32_t> prompt(1000);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 11);
  Engine first, second;
  for (Engine* engine : {&first, &second}) {
    const ems::Status served = Serve(controller, prompt, engine);
    if (!served.ok()) {
      std::fprintf(stderr, "%s\n", ems::ToString(served).c_str());
      return 1;
    }
  }
  std::puts(second.kv == first.kv ? "equal" : "different");
  return 0;
}
