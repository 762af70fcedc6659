#pragma once
// The commands of ems-bench. Each adds itself to the program, from the *_command.cc of its folder.

namespace ems {
class Command;
}

namespace ems::bench {

// What an engine gains from context caching, and what it pays for it.
void AddContextCommand(Command* program);
// The control plane at size: a change on its way to all who watch.
void AddControlCommand(Command* program);
// What changes of membership under load cost: joins, stops, kills, returns.
void AddElasticCommand(Command* program);
// How fast the serving loop's engine computes, beside what the core can do.
void AddEngineCommand(Command* program);
// What the connectors in engines cost, beside what the engine would do without them.
void AddEnginesCommand(Command* program);
// The emulated fabric: messages between processes beside memcpy, paced links beside their model.
void AddFabricCommand(Command* program);
// Small calls beside others that ask the same io thread for much.
void AddFairnessCommand(Command* program);
// Many readers of one object, with copies of it on other servers and without.
void AddHotCommand(Command* program);
// A client on its servers' host, beside memcpy, redis and memcached in the same run.
void AddLocalCommand(Command* program);
// How much of a full pool is payload, and how long allocation takes in it.
void AddMemoryCommand(Command* program);
// Many instances that load a model from a slow source, and switch between models: with no cache,
// with a cache of their own, with EMS (CM §4.4.3, Table 2). Adds the one that instances run, too.
void AddModelCommand(Command* program);
// The papers' figures and tables beside those of the cost model, in virtual time.
void AddPaperCommand(Command* program);
// Conversations and prompts that begin alike through the serving loop's API, with EMS and without.
void AddServeCommand(Command* program);
// The SSD tier beside fio, what it takes of the disk, and how long it takes to come back.
void AddSsdCommand(Command* program);
// How fast single objects go in and out, beside the raw socket of the same run.
void AddStoreCommand(Command* program);
// Replays a request trace through context caching against a running cluster.
void AddTraceCommand(Command* program);

}  // namespace ems::bench
