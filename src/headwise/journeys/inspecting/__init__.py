"""The parts of an inspection: what is read, by which model, what is asked of it and of its heads.

sentence, corpus, sampling   what is read
subject, own_subjects,       how a model reads it
hugging_face_subject,
at_hand, text_alone, opening
annotating, passing, rules   one pass: where heads look
asking, worth, importance,   a closer look at a sample: how much heads matter
means
identity, columns            what an inspection is of, and what its table may hold
examining                    all of it
"""
