"""Values of records as data: strings, JSON, Avro, Avro with the id of its schema before it, and
Protobuf. `archive` writes what they are, `dlq` checks that they are that.

options      of both jobs
decoder      bytes to a value, by the options
avro         Avro's binary encoding
avro_types   Avro's types as Spark has them
registry     schemas by their ids, from a schema registry or a folder
protobuf     Protobuf's encoding
descriptors  messages out of a descriptor set
json_values  JSON by a schema of Spark
types        schemas of Spark: as Arrow's types, and how a table's grows
"""
